"""Chained hashes of a prompt's blocks, and where blocks of text end.

Compiled: `hashing.pyx`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NewType, cast

from xxhash import xxh3_64_intdigest

BlockHash = NewType("BlockHash", int)
"""64 bits that identify a block and all that precedes it, under one model and salt."""

FIRST_BLOCK_BYTES = 128

_PER_DOUBLING = 16
_LONGEST = 1 << 31
_HASHES = 1 << 64


def _grid() -> tuple[int, ...]:
    ends = []
    end = 0
    while end < _LONGEST:
        step = max(FIRST_BLOCK_BYTES, (1 << (end.bit_length() - 1)) // _PER_DOUBLING if end else 0)
        end += step
        ends.append(end)
    return tuple(ends)


_BLOCK_ENDS = _grid()
"""Where blocks of text end, in bytes from the start of the prompt, messages aside."""


def text_chain(
    parent: int, text: bytes, marks: Sequence[int]
) -> tuple[Sequence[BlockHash], Sequence[int]]:
    """Cut a text on the grid and at `marks`, and hash its blocks: return hashes, and ends.

    Both count from the start of `text`, in bytes. Marks outside of the text are passed over, and
    their order does not matter.
    """
    ends = block_ends(len(text), marks)
    return extend(parent, text, ends), ends


def block_ends(size: int, marks: Sequence[int]) -> Sequence[int]:
    """Return where the blocks of a text of `size` bytes end: on the grid, and at its marks."""
    grid = _BLOCK_ENDS[: bisect_right(_BLOCK_ENDS, size)]
    return sorted({*grid, *(mark for mark in marks if 0 < mark <= size)}) if marks else grid


def extend(parent: int, data: bytes, ends: Sequence[int], unit: int = 1) -> Sequence[BlockHash]:
    """Hash the blocks of `data` up to each of `ends`, each seeded with the hash before it.

    Ends count from the start of `data`, in `unit` bytes, and rise. Raises `ValueError` if one
    does not, or if there are no bytes to it; `OverflowError` for a `parent` that is not a hash.
    """
    if unit < 1:
        raise ValueError("a unit must have at least one byte")
    if not 0 <= parent < _HASHES:
        raise OverflowError("a hash has 64 bits")
    hashes: list[int] = []
    view, start, size = memoryview(data), 0, len(data) // unit
    for end in ends:
        if not start < end <= size:
            raise ValueError("blocks must end one after the other, and within the data")
        parent = xxh3_64_intdigest(view[start * unit : end * unit], parent)
        hashes.append(parent)
        start = end
    return cast("list[BlockHash]", hashes)  # naming each would cost more than hashing it
