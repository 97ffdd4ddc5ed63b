"""The chain of a prompt's blocks."""

from collections.abc import Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.prompts.hashing import BlockHash


@mypyc_attr(free_list_len=1, acyclic=True)
class Chain:
    """The full blocks of one prompt, in its own unit: bytes of text, or tokens if `exact`.

    Block i has `hashes[i]` and ends at `ends[i]`; the prompt is `size` long; `marks` are the ends
    of its messages. `rest_digest` is a hash of what follows the last full block, 0 if nothing does.
    If no block is full, it is a hash of the whole prompt.

    `lookup` is the number of leading blocks that a cache may serve. In token ids it leaves out a
    block that ends with the prompt (vLLM v1/core/kv_cache_manager.py get_computed_blocks: at most
    `num_tokens - 1` tokens hit); text is followed by what the chat template adds. It is 0 if
    the engine does not read its cache (`skip_reading_prefix_cache`).

    `hashes` and `ends` are lists, arrays or ranges. `multimodal`: some tokens stand for media, so
    KV events do not lead to the hashes from there on.
    """

    def __init__(  # noqa: PLR0913 (one fact each)
        self,
        hashes: Sequence[BlockHash],
        ends: Sequence[int],
        size: int,
        lookup: int,
        *,
        exact: bool = False,
        marks: Sequence[int] = (),
        rest_digest: int = 0,
        multimodal: bool = False,
    ) -> None:
        self.hashes: Final = hashes
        self.ends: Final = ends
        self.size: Final = size
        self.lookup: Final = lookup
        self.exact: Final = exact
        self.marks: Final = marks
        self.rest_digest: Final = rest_digest
        self.multimodal: Final = multimodal
