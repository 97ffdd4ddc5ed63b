"""The fields of a request's body that routing reads."""

from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.request import Prompt
from epp.values import Value


@mypyc_attr(free_list_len=1, acyclic=True)
class Parsed(Value):
    """The fields of a body that routing reads; the last two as of `InferenceRequest`."""

    def __init__(  # noqa: PLR0913 (one fact each)
        self,
        *,
        model: str = "",
        prompts: tuple[Prompt, ...] = (),
        stream: bool = False,
        max_tokens: int | None = None,
        cache_salt: str = "",
        n: int = 1,
        multimodal: bool = False,
        skip_reading_prefix_cache: bool = False,
    ) -> None:
        self.model: Final = model
        self.prompts: Final = prompts
        self.stream: Final = stream
        self.max_tokens: Final = max_tokens
        self.cache_salt: Final = cache_salt
        self.n: Final = n
        self.multimodal: Final = multimodal
        self.skip_reading_prefix_cache: Final = skip_reading_prefix_cache


UNREAD: Final = Parsed()
"""Stands for a body that was not seen, or that could not be read: it is routed by load."""
