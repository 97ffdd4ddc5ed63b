"""The lengths of a prompt and of its blocks, in tokens."""

from array import array
from collections.abc import Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.prompts.text_lengths import sizes_between


@mypyc_attr(free_list_len=1, acyclic=True)
class TokenOffsets:
    """A prompt of `total` tokens, whose block i ends after `ends[i]` tokens.

    The first `known` tokens were counted by a server, or came as such; the others are estimated.
    """

    def __init__(self, total: int, ends: Sequence[int], known: int = 0) -> None:
        self.total: Final = total
        self.ends: Final = ends
        self.known: Final = known

    def covered(self, blocks: int) -> int:
        """Return how many tokens the first `blocks` blocks have."""
        return self.ends[blocks - 1] if blocks else 0

    def sizes(self) -> Sequence[int]:
        """Return the tokens of each block."""
        ends = self.ends
        return array("Q", (ends.step,)) * len(ends) if type(ends) is range else sizes_between(ends)
