"""What a block pool takes for names and sizes, here and in its kernel alike.

A name has 64 bits; sizes are tokens, and have bounds, so that they can be summed in 64 bits.
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
    """Return names in a form that is fast to use more than once.

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
    """Return a number of tokens, taken to be from 0 to `most`. Raises `TypeError` for no int."""
    return max(0, min(index(given), most))
