"""Chains of block hashes between replicas: a prefix that a peer has is sent as its tip and length.

A prompt is written as the prefix that was sent before (its last hash, and its number of blocks),
and the blocks after it. The ends of a text's blocks are not written: blocks are cut on the grid
that all replicas use, and at the ends of messages. The tokens of a prefix are scaled to their
current estimate.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, cast

from epp.model.prompts.block_hashes import BlockHashes
from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import BlockHash, block_ends
from epp.model.prompts.text_lengths import scaled, sizes_between
from epp.model.prompts.token_offsets import TokenOffsets
from epp.protocol.replicas.facts import LARGEST, PromptFact

_ROOM: Final = 1 << 17
"""Blocks that are kept in each of two generations: some 20 MB, with their chains."""
_STRIDE: Final = 8
"""A chain is found by each block whose number is a multiple of this."""
_REPEATS: Final = 4
"""This many repeated blocks take the memory of one new block, with its share of names."""
_NO_WORDS: Final = array("Q")
_BIG_ENDIAN: Final = sys.byteorder == "big"


class UnknownChain(Exception):
    """A prompt starts with a chain that this replica does not have."""

    def __init__(self, tip: int, blocks: int) -> None:
        self.tip: Final = tip
        self.blocks: Final = blocks
        super().__init__(f"no chain of {blocks} blocks ends with this hash")


class _Generation:
    """Chains by the hashes that find them; `hashes` has the same hashes, searched in one call."""

    def __init__(self, room: int) -> None:
        self.left = room
        self.hashes: Final = BlockHashes()
        self.chains: Final[dict[int, tuple[Chain, TokenOffsets]]] = {}


class KnownChains:
    """The chains that were sent or received, of which the most recently used ones are kept.

    A chain is found by its last block, and by every eighth one. Chains are kept in two generations
    of `room` blocks each: when the young one is full, the old one is dropped. A block that a chain
    repeats takes a quarter of the room of a new one.
    """

    def __init__(self, room: int = _ROOM) -> None:
        self._room: Final = room
        self._young = _Generation(room)
        self._old = _Generation(room)

    def __len__(self) -> int:
        return len(self._young.chains) + len(self._old.chains)

    def longest(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks of a chain are known, up to a block that finds it."""
        return max(self._young.hashes.last(hashes), self._old.hashes.last(hashes))

    def find(self, tip: int, blocks: int) -> tuple[Chain, TokenOffsets] | None:
        """Return a chain whose block number `blocks` has the hash `tip`, with its lengths."""
        found = self._young.chains.get(tip) or self._old.chains.get(tip)
        if found is None or len(found[0].hashes) < blocks or found[0].hashes[blocks - 1] != tip:
            return None
        return found

    def add(self, chain: Chain, offsets: TokenOffsets, first: int = 0) -> None:
        """Add a chain; it keeps its `first` blocks once more, although they are known already."""
        hashes = chain.hashes
        entry: Any = (chain, offsets)  # one for all: as a tuple of these it is made for each use
        self._young.left -= len(hashes) - first + first // _REPEATS
        if self._young.left < 0:
            self._old, self._young = self._young, _Generation(self._room)
        young, last = self._young, len(hashes) - 1
        # An array or a list.
        named: Any = hashes[first - first % _STRIDE + _STRIDE - 1 : last : _STRIDE]
        named.append(hashes[last])
        young.hashes.add(named)
        for each in named:
            young.chains[each] = entry


def write_prompt(chain: Chain, offsets: TokenOffsets, known: KnownChains) -> PromptFact:
    """Write a prompt, and add its chain to those that are known."""
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
        multimodal=chain.multimodal,
    )


def _same_marks(
    chain: Chain, count: int, start: int, known: tuple[Chain, TokenOffsets] | None
) -> bool:
    """Whether the known prefix is cut into the same messages."""
    if known is None:
        return False
    other = known[0].marks
    return bisect_right(other, start) == count and list(other[:count]) == list(chain.marks[:count])


def read_prompt(fact: PromptFact, known: KnownChains) -> tuple[Chain, TokenOffsets]:
    """Read a prompt, and add its chain to those that are known.

    Raises `UnknownChain`, and `ValueError` for what cannot be a prompt.
    """
    hashes, base, marks = read_words(fact.hashes), None, tuple(fact.marks)
    block, size, before = fact.block, fact.size, fact.before
    if before:
        base = known.find(fact.tip, before)
        if base is None:
            raise UnknownChain(fact.tip, before)
        if base[0].exact is not (block > 0):
            raise ValueError("a prompt of another kind than its prefix")
        hashes = _words(base[0].hashes[:before]) + hashes
        cuts, start = base[0].marks, base[0].ends[before - 1]
        marks = (*cuts[: bisect_right(cuts, start)], *marks)
    ends: Sequence[int]
    if block:
        if size // block != len(hashes):
            raise ValueError("a prompt of token ids has as many blocks as fit")
        ends = range(block, size + 1, block)
        lookup, offsets = max(0, size - 1) // block, TokenOffsets(size, ends, size)
    else:
        ends = block_ends(size, marks)
        tokens = _tokens(fact.ends, base, before, fact.tokens_before)
        if not len(ends) == len(tokens) == len(hashes):
            raise ValueError("a text has as many blocks as it is cut into")
        lookup, offsets = len(hashes), TokenOffsets(fact.total, tokens, fact.known)
    chain = Chain(
        cast("Sequence[BlockHash]", hashes),
        ends,
        size,
        0 if fact.uncached else lookup,
        exact=block > 0,
        marks=marks,
        rest_digest=fact.rest_digest,
        multimodal=fact.multimodal,
    )
    if before < len(hashes):
        known.add(chain, offsets, before)
    return chain, offsets


def _tokens(
    ends: bytes, base: tuple[Chain, TokenOffsets] | None, before: int, covered: int
) -> "array[int]":
    """Return the tokens up to the end of each block of a text."""
    tokens = read_words(ends)
    if base is not None:
        known = base[1].ends[:before]
        if known[-1] != covered:
            known = scaled(known, covered, max(1, known[-1]))
        tokens = _words(known) + tokens
    sizes_between(tokens)  # raises `ValueError` if they do not rise
    if tokens and tokens[-1] > LARGEST:
        raise ValueError("a text has more tokens than are counted")
    return tokens


def written_words(words: Sequence[int]) -> bytes:
    """Return hashes, or ends of blocks, 8 bytes each, little-endian."""
    written = _words(words)
    if _BIG_ENDIAN:
        written = written[:]
        written.byteswap()
    return written.tobytes()


def read_words(data: bytes) -> "array[int]":
    """Read hashes, or ends of blocks. Raises `ValueError` for a part of one."""
    words = _NO_WORDS + _NO_WORDS  # a new one, for a quarter of what `array("Q", data)` costs
    words.frombytes(data)
    if _BIG_ENDIAN:
        words.byteswap()
    return words


def written_sizes(sizes: Sequence[int]) -> bytes:
    """Return sizes of blocks in tokens, or other small numbers, 4 bytes each, little-endian."""
    written = array("I", sizes)
    if _BIG_ENDIAN:
        written.byteswap()
    return written.tobytes()


def read_sizes(data: bytes) -> "array[int]":
    """Read sizes of blocks. Raises `ValueError` for a part of one."""
    sizes = array("I", data)
    if _BIG_ENDIAN:
        sizes.byteswap()
    return array("Q", sizes)


def _words(values: Sequence[int]) -> "array[int]":
    return values if isinstance(values, array) and values.typecode == "Q" else array("Q", values)
