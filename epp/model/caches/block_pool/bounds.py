"""Bounds of a block pool's hashes and sizes, which the extension has too.

A hash has 64 bits. Sizes are in tokens and bounded, so that sums of them fit 64 bits.
"""

from array import array
from collections.abc import Sequence
from operator import index

from epp.model.prompts.hashing import BlockHash

LARGEST = (1 << 31) - 1
"""Tokens of a block, at most; what is larger counts as that."""
MOST_TOKENS = 1 << 60
"""Tokens of anything, at most; what is larger counts as that."""


def hashes_in(hashes: Sequence[BlockHash]) -> list[BlockHash]:
    """Return a copy of hashes.

    Raises `TypeError` if one is not an int, `OverflowError` if one does not fit 64 bits.
    """
    return [BlockHash(word) for word in array("Q", hashes)]


def sizes_in(sizes: Sequence[int]) -> list[int]:
    """Return a copy of the sizes of blocks, each at most `LARGEST`.

    Raises `TypeError` if one is not an int, `OverflowError` if one is negative.
    """
    return [min(size, LARGEST) for size in array("Q", sizes)]


def tokens_in(given: int, most: int = MOST_TOKENS) -> int:
    """Return a number of tokens, clamped to 0..`most`; raises `TypeError` if it is not an int."""
    return max(0, min(index(given), most))
