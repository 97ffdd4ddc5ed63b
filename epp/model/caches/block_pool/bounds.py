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


def hashes_in(hashes: Sequence[BlockHash]) -> Sequence[BlockHash]:
    """Return hashes in a form that is fast to use more than once.

    Raises `TypeError` where one is no int, `OverflowError` where one does not fit 64 bits.
    """
    words = array("Q", hashes)
    return hashes if isinstance(hashes, list) else [BlockHash(word) for word in words]


def sizes_in(sizes: Sequence[int]) -> Sequence[int]:
    """Return sizes of blocks, each at most `LARGEST`.

    Raises `TypeError` where one is no int, `OverflowError` where one is negative.
    """
    words = array("Q", sizes)
    if words and max(words) > LARGEST:
        return [min(size, LARGEST) for size in words]
    return sizes


def tokens_in(given: int, most: int = MOST_TOKENS) -> int:
    """Return a number of tokens, clamped to 0..`most`. Raises `TypeError` for what is no int."""
    return max(0, min(index(given), most))
