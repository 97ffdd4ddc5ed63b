"""The blocks of a prompt."""

from collections.abc import Sequence
from typing import Final

from epp.model.prompts.hashing import BlockHash


class Chain:
    """The full blocks of one prompt, in its own unit: bytes of text, or tokens where `exact`.

    Block i ends at `ends[i]`; the prompt is `size` long; `marks` are the ends of its messages.
    `lookup` is the number of leading blocks that a cache may serve: of token ids, one that ends
    with the prompt is computed again (vLLM `get_computed_blocks`: at most `num_tokens - 1` tokens
    hit); text is followed by what the chat template adds. `hashes` and `ends` are lists or
    arrays, by who made them.
    """

    __slots__ = ("ends", "exact", "hashes", "lookup", "marks", "size")

    def __init__(  # noqa: PLR0913 (one fact each)
        self,
        hashes: Sequence[BlockHash],
        ends: Sequence[int],
        size: int,
        lookup: int,
        *,
        exact: bool = False,
        marks: Sequence[int] = (),
    ) -> None:
        self.hashes: Final = hashes
        self.ends: Final = ends
        self.size: Final = size
        self.lookup: Final = lookup
        self.exact: Final = exact
        self.marks: Final = marks
