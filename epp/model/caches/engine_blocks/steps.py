"""Long lists of blocks, gone through some at a time, so that no step takes long."""

from collections.abc import Iterator, Sequence

from epp.model.prompts.hashing import BlockHash

STEP = 1 << 9
"""Blocks of one step."""


def in_steps(blocks: Sequence[BlockHash]) -> Iterator[Sequence[BlockHash]]:
    """Yield blocks some at a time."""
    for start in range(0, len(blocks), STEP):
        yield blocks[start : start + STEP]
