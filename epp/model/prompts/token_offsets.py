"""A prompt in tokens."""

from array import array
from collections.abc import Sequence
from typing import Final

from epp.model.kernels import sizes_between


class TokenOffsets:
    """A prompt in tokens: `total`, and `ends[i]` where its block i ends."""

    __slots__ = ("ends", "total")

    def __init__(self, total: int, ends: Sequence[int]) -> None:
        self.total: Final = total
        self.ends: Final = ends

    def covered(self, blocks: int) -> int:
        """Return how many tokens the first `blocks` blocks are."""
        return self.ends[blocks - 1] if blocks else 0

    def sizes(self) -> Sequence[int]:
        """Return the length of each block."""
        ends = self.ends
        return array("Q", (ends.step,)) * len(ends) if type(ends) is range else sizes_between(ends)
