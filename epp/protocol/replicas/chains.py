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
from itertools import accumulate
from typing import Final, cast

from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import BLOCK_ENDS, BlockHash
from epp.model.prompts.text_lengths import sizes_between
from epp.model.prompts.token_offsets import TokenOffsets
from epp.protocol.replicas.facts import PromptFact

_ROOM: Final = 1 << 17
"""Blocks that are known in each of two generations: some 20 MB, with their chains."""
_STRIDE: Final = 8
"""How many blocks lie between two by which a chain is found."""
_HASH_BYTES: Final = 8


class UnknownChain(Exception):
    """A prompt starts with a chain that is not known here."""

    def __init__(self, tip: int, blocks: int) -> None:
        self.tip: Final = tip
        self.blocks: Final = blocks
        super().__init__(f"no chain of {blocks} blocks ends with this hash")


class KnownChains:
    """The chains that were told or heard, the ones used last: of `room` blocks, twice at most.

    A chain is found by its last block, and by every eighth one. Chains are kept in two generations:
    where the young one is full, the old one is dropped.
    """

    def __init__(self, room: int = _ROOM) -> None:
        self._room: Final = room
        self._left = room
        self._young: dict[int, tuple[Chain, TokenOffsets]] = {}
        self._old: dict[int, tuple[Chain, TokenOffsets]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def longest(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks of a chain are known, about: it searches by bisection."""
        blocks = len(hashes)
        if not blocks or self._at(hashes[-1]) is not None:
            return blocks
        low, high = 0, blocks // _STRIDE
        while low < high:
            middle = (low + high + 1) >> 1
            if self._at(hashes[middle * _STRIDE - 1]) is not None:
                low = middle
            else:
                high = middle - 1
        known = low * _STRIDE
        for last in range(min(blocks, known + _STRIDE) - 1, known, -1):
            if self._at(hashes[last - 1]) is not None:
                return last
        return known

    def find(self, tip: int, blocks: int) -> tuple[Chain, TokenOffsets] | None:
        """Return a chain that has this hash as its block of that number, with its lengths."""
        found = self._at(tip)
        if found is None or len(found[0].hashes) < blocks or found[0].hashes[blocks - 1] != tip:
            return None
        return found

    def add(self, chain: Chain, offsets: TokenOffsets, first: int = 0) -> None:
        """Know a chain, whose first blocks are known already."""
        hashes, entry = chain.hashes, (chain, offsets)
        self._left -= len(hashes) - first
        if self._left < 0:
            self._left = self._room
            self._old, self._young = self._young, {}
        young = self._young
        for last in range(first - first % _STRIDE + _STRIDE, len(hashes), _STRIDE):
            young[hashes[last - 1]] = entry
        young[hashes[-1]] = entry

    def _at(self, block_hash: int) -> tuple[Chain, TokenOffsets] | None:
        found = self._young.get(block_hash)
        return self._old.get(block_hash) if found is None else found


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
    sizes: list[int] | int
    if chain.exact:
        sizes = cast("range", chain.ends).step
    else:
        sizes = list(sizes_between(offsets.ends)[before:])
    return PromptFact(
        hashes=written_hashes(chain.hashes[before:]),
        sizes=sizes,
        size=chain.size,
        total=offsets.total,
        known=offsets.known,
        rest_digest=chain.rest_digest,
        marks=list(chain.marks[skipped:]),
        tip=chain.hashes[before - 1] if before else 0,
        before=before,
        tokens_before=offsets.covered(before),
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
        if base[0].exact is not isinstance(fact.sizes, int):
            raise ValueError("a prompt of another kind than its prefix")
    hashes = read_hashes(fact.hashes)
    if base is not None:
        hashes = _words(base[0].hashes[:before]) + hashes
    if isinstance(fact.sizes, int):
        chain, offsets = _exact(fact, hashes, base, fact.sizes)
    else:
        chain, offsets = _text(fact, hashes, base, fact.sizes)
    if before < len(hashes):
        known.add(chain, offsets, before)
    return chain, offsets


def _exact(
    fact: PromptFact, hashes: "array[int]", base: tuple[Chain, TokenOffsets] | None, block: int
) -> tuple[Chain, TokenOffsets]:
    if not block or fact.size // block != len(hashes):
        raise ValueError("a prompt of token ids has as many blocks as fit")
    ends = range(block, fact.size + 1, block)
    start = ends[fact.before - 1] if fact.before else 0
    chain = Chain(
        cast("Sequence[BlockHash]", hashes),
        ends,
        fact.size,
        max(0, fact.size - 1) // block,
        exact=True,
        marks=_marks(fact, base, start),
        rest_digest=fact.rest_digest,
    )
    return chain, TokenOffsets(fact.size, ends, fact.size)


def _text(
    fact: PromptFact,
    hashes: "array[int]",
    base: tuple[Chain, TokenOffsets] | None,
    sizes: list[int],
) -> tuple[Chain, TokenOffsets]:
    before = fact.before
    start, ends, tokens = 0, array("Q"), array("Q")
    if base is not None:
        ends = _words(base[0].ends[:before])
        start = ends[-1]
        tokens = _words(base[1].ends[:before])
        covered = tokens[-1]
        if covered != fact.tokens_before:
            scale = fact.tokens_before / max(1, covered)
            tokens = array("Q", [int(each * scale) for each in tokens])
            tokens[-1] = fact.tokens_before
    ends.extend(_cuts(start, fact.size, fact.marks))
    if sizes:
        tokens.extend(accumulate([fact.tokens_before + sizes[0], *sizes[1:]]))
    if not len(ends) == len(tokens) == len(hashes):
        raise ValueError("a text has as many blocks as it is cut into")
    chain = Chain(
        cast("Sequence[BlockHash]", hashes),
        ends,
        fact.size,
        len(hashes),
        marks=_marks(fact, base, start),
        rest_digest=fact.rest_digest,
    )
    return chain, TokenOffsets(fact.total, tokens, fact.known)


def _cuts(start: int, size: int, marks: list[int]) -> Sequence[int]:
    """Return where the blocks of a text end after `start` (`prompts.hashing.text_chain`)."""
    grid = BLOCK_ENDS[bisect_right(BLOCK_ENDS, start) : bisect_right(BLOCK_ENDS, size)]
    return sorted({*grid, *(each for each in marks if start < each <= size)}) if marks else grid


def _marks(fact: PromptFact, base: tuple[Chain, TokenOffsets] | None, start: int) -> Sequence[int]:
    if base is None:
        return tuple(fact.marks)
    marks = base[0].marks
    return (*marks[: bisect_right(marks, start)], *fact.marks)


def written_hashes(hashes: Sequence[int]) -> bytes:
    """Return hashes, 8 bytes each, little-endian."""
    words = _words(hashes)
    if sys.byteorder == "big":
        words = words[:]
        words.byteswap()
    return words.tobytes()


def read_hashes(data: bytes) -> "array[int]":
    """Read hashes. Raises `ValueError` for a part of one."""
    if len(data) % _HASH_BYTES:
        raise ValueError("a hash has 8 bytes")
    words = array("Q", data)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def _words(values: Sequence[int]) -> "array[int]":
    return values if isinstance(values, array) and values.typecode == "Q" else array("Q", values)
