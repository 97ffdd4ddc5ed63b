"""The contract of a tokenizer of prompts."""

from collections.abc import Mapping
from typing import Protocol

from epp.adapters.tokens.fallback import FallbackCause
from epp.model.request import InferenceRequest, Prompt


class PromptTokenizer(Protocol):
    """Converts requests to prompts of token ids, or returns their prompts of text if that fails.

    No method raises for the content of a request, or for a server that does not answer.
    """

    def ready(self, request: InferenceRequest) -> tuple[Prompt, ...] | None:
        """Return the prompts if that takes little time; None: call `tokenize`, once."""

    async def tokenize(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        """Return the prompts, within the time limits of the configuration."""

    @property
    def counts(self) -> Mapping[FallbackCause, int]:
        """Requests that stayed text, by cause."""

    async def close(self) -> None:
        """Stop threads and close connections."""
