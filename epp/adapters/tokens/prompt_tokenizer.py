"""What the service asks for tokens."""

from collections.abc import Mapping
from typing import Protocol

from epp.adapters.tokens.fallback import FallbackCause
from epp.model.request import InferenceRequest, Prompt


class PromptTokenizer(Protocol):
    """Turns requests into prompts of token ids; of text, as they came, where that fails.

    Neither method raises for what a request holds, or for what does not answer.
    """

    def ready(self, request: InferenceRequest) -> tuple[Prompt, ...] | None:
        """Return the prompts if that takes next to no time; None: ask `tokenize`, once."""

    async def tokenize(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        """Return the prompts, however long it takes within the limits of the configuration."""

    @property
    def counts(self) -> Mapping[FallbackCause, int]:
        """Requests that were left as text, by cause."""

    async def close(self) -> None:
        """Let go of threads and connections."""
