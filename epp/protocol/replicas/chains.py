"""Chains of block hashes between replicas: what a peer has goes as the tip and length of it.

A prompt is written as the prefix that was told before (its last hash, and how many blocks it has),
and the blocks after it. Where the blocks of a text end is not written: they are cut on the grid
that all replicas have, and at the ends of messages. Tokens of a prefix are scaled to what they are
believed to be now.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, cast

from epp.model.prompts.block_hashes import BlockHashes
from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import BlockHash, block_ends
from epp.model.prompts.text_lengths import scaled, sizes_between
from epp.model.prompts.token_offsets import TokenOffsets
from epp.protocol.replicas.facts import LARGEST, PromptFact

_ROOM: Final = 1 << 17
"""Blocks that are known in each of two generations: some 20 MB, with their chains."""
_STRIDE: Final = 8
"""How many blocks lie between two by which a chain is found."""
_WORD_BYTES: Final = 8


class UnknownChain(Exception):
    """A prompt starts with a chain that is not known here."""

    def __init__(self, tip: int, blocks: int) -> None:
        self.tip: Final = tip
        self.blocks: Final = blocks
        super().__init__(f"no chain of {blocks} blocks ends with this hash")


class _Generation:
    """Chains by the hashes at which they are found; `hashes` has the same, searched in one call."""

    def __init__(self, room: int) -> None:
        self.left = room
        self.hashes: Final = BlockHashes()
        self.chains: Final[dict[int, tuple[Chain, TokenOffsets]]] = {}


class KnownChains:
    """The chains that were told or heard, the ones used last: of `room` blocks, twice at most.

    A chain is found by its last block, and by every eighth one. Chains are kept in two generations:
    where the young one is full, the old one is dropped.
    """

    def __init__(self, room: int = _ROOM) -> None:
        self._room: Final = room
        self._young = _Generation(room)
        self._old = _Generation(room)

    def __len__(self) -> int:
        return len(self._young.chains) + len(self._old.chains)

    def longest(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks of a chain are known: up to one by which it is found."""
        return max(self._young.hashes.last(hashes), self._old.hashes.last(hashes))

    def find(self, tip: int, blocks: int) -> tuple[Chain, TokenOffsets] | None:
        """Return a chain that has this hash as its block of that number, with its lengths."""
        found = self._young.chains.get(tip) or self._old.chains.get(tip)
        if found is None or len(found[0].hashes) < blocks or found[0].hashes[blocks - 1] != tip:
            return None
        return found

    def add(self, chain: Chain, offsets: TokenOffsets, first: int = 0) -> None:
        """Know a chain, whose first blocks are known already."""
        hashes, entry = chain.hashes, (chain, offsets)
        self._young.left -= len(hashes) - first
        if self._young.left < 0:
            self._old, self._young = self._young, _Generation(self._room)
        eighths = range(first - first % _STRIDE + _STRIDE, len(hashes), _STRIDE)
        named = [hashes[last - 1] for last in eighths]
        named.append(hashes[-1])
        self._young.hashes.add(named)
        for each in named:
            self._young.chains[each] = entry


def write_prompt(chain: Chain, offsets: TokenOffsets, known: KnownChains) -> PromptFact:
    """Write a prompt, whose chain is known from here on."""
    before = known.longest(chain.hashes)
    start = chain.ends[before - 1] if before else 0
    skipped = bisect_right(chain.marks, start) if before else 0
    if before and not _same_marks(
        chain, skipped, start, known.find(chain.hashes[before - 1], before)
    ):
        before = start = skipped = 0
    if before < len(chain.hashes):
        known.add(chain, offsets, before)
    return PromptFact(
        hashes=written_words(chain.hashes[before:]),
        ends=b"" if chain.exact else written_words(offsets.ends[before:]),
        block=cast("range", chain.ends).step if chain.exact else 0,
        size=chain.size,
        total=offsets.total,
        known=offsets.known,
        rest_digest=chain.rest_digest,
        marks=list(chain.marks[skipped:]),
        tip=chain.hashes[before - 1] if before else 0,
        before=before,
        tokens_before=offsets.covered(before),
        uncached=not chain.lookup,
    )


def _same_marks(
    chain: Chain, count: int, start: int, known: tuple[Chain, TokenOffsets] | None
) -> bool:
    """Whether the known prefix is cut into the same messages."""
    if known is None or known[0].exact is not chain.exact:
        return False
    other = known[0].marks
    return bisect_right(other, start) == count and list(other[:count]) == list(chain.marks[:count])


def read_prompt(fact: PromptFact, known: KnownChains) -> tuple[Chain, TokenOffsets]:
    """Read a prompt, whose chain is known from here on.

    Raises `UnknownChain`, and `ValueError` for what cannot be a prompt.
    """
    before, base = fact.before, None
    if before:
        base = known.find(fact.tip, before)
        if base is None:
            raise UnknownChain(fact.tip, before)
        if base[0].exact is not (fact.block > 0):
            raise ValueError("a prompt of another kind than its prefix")
    hashes = read_words(fact.hashes)
    if base is not None:
        hashes = _words(base[0].hashes[:before]) + hashes
    chain, offsets = (_exact if fact.block else _text)(fact, hashes, base)
    if before < len(hashes):
        known.add(chain, offsets, before)
    return chain, offsets


def _exact(
    fact: PromptFact, hashes: "array[int]", base: tuple[Chain, TokenOffsets] | None
) -> tuple[Chain, TokenOffsets]:
    block = fact.block
    if fact.size // block != len(hashes):
        raise ValueError("a prompt of token ids has as many blocks as fit")
    ends = range(block, fact.size + 1, block)
    start = ends[fact.before - 1] if fact.before else 0
    chain = Chain(
        cast("Sequence[BlockHash]", hashes),
        ends,
        fact.size,
        0 if fact.uncached else max(0, fact.size - 1) // block,
        exact=True,
        marks=_marks(fact, base, start),
        rest_digest=fact.rest_digest,
    )
    return chain, TokenOffsets(fact.size, ends, fact.size)


def _text(
    fact: PromptFact, hashes: "array[int]", base: tuple[Chain, TokenOffsets] | None
) -> tuple[Chain, TokenOffsets]:
    before, size, start = fact.before, fact.size, 0
    tokens = read_words(fact.ends)
    if base is not None:
        start = base[0].ends[before - 1]
        known = base[1].ends[:before]
        if known[-1] != fact.tokens_before:
            known = scaled(known, fact.tokens_before, max(1, known[-1]))
        tokens = _words(known) + tokens
    marks = _marks(fact, base, start)
    ends = block_ends(size, marks)
    if not len(ends) == len(tokens) == len(hashes):
        raise ValueError("a text has as many blocks as it is cut into")
    sizes_between(tokens)  # raises `ValueError` if they do not rise
    if tokens and tokens[-1] > LARGEST:
        raise ValueError("a text has more tokens than are counted")
    chain = Chain(
        cast("Sequence[BlockHash]", hashes),
        ends,
        size,
        0 if fact.uncached else len(hashes),
        marks=marks,
        rest_digest=fact.rest_digest,
    )
    return chain, TokenOffsets(fact.total, tokens, fact.known)


def _marks(fact: PromptFact, base: tuple[Chain, TokenOffsets] | None, start: int) -> Sequence[int]:
    if base is None:
        return tuple(fact.marks)
    marks = base[0].marks
    return (*marks[: bisect_right(marks, start)], *fact.marks)


def written_words(words: Sequence[int]) -> bytes:
    """Return hashes, or ends of blocks, 8 bytes each, little-endian."""
    written = _words(words)
    if sys.byteorder == "big":
        written = written[:]
        written.byteswap()
    return written.tobytes()


def read_words(data: bytes) -> "array[int]":
    """Read hashes, or ends of blocks. Raises `ValueError` for a part of one."""
    if len(data) % _WORD_BYTES:
        raise ValueError("a hash has 8 bytes, and so has an end")
    words = array("Q", data)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def _words(values: Sequence[int]) -> "array[int]":
    return values if isinstance(values, array) and values.typecode == "Q" else array("Q", values)
