"""Long lists of blocks, gone through some at a time, so that no step takes long."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

STEP = 1 << 9
"""Blocks of one step."""


def in_steps(blocks: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield blocks some at a time."""
    for start in range(0, len(blocks), STEP):
        yield blocks[start : start + STEP]
