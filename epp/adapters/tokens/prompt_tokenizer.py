"""The contract of a tokenizer of prompts, and what is done with those that stay text."""

from abc import ABC, abstractmethod
from collections import Counter

from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.model.request import InferenceRequest, Prompt
from epp.system.logs import Log

_log = Log(__name__)


class PromptTokenizer(ABC):
    """Converts requests to prompts of token ids, or returns their prompts of text if that fails.

    No method raises for the content of a request, or for a server that does not answer. Requests
    that stay text are in `counts` by cause; the first of each cause is logged.
    """

    def __init__(self) -> None:
        self.counts: Counter[FallbackCause] = Counter()

    def ready(self, request: InferenceRequest) -> tuple[Prompt, ...] | None:
        """Return the prompts if that takes little time; None: call `tokenize`, once."""
        if all(prompt.exact for prompt in request.prompts):
            return request.prompts
        try:
            return self._at_once(request)
        except (TextFallback, RecursionError) as error:
            return self._text_of(request, error)

    async def tokenize(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        """Return the prompts, within the time limits of the configuration."""
        try:
            return await self._tokenized(request)
        except (TextFallback, RecursionError) as error:
            return self._text_of(request, error)

    def _text_of(
        self, request: InferenceRequest, reason: TextFallback | RecursionError
    ) -> tuple[Prompt, ...]:
        if isinstance(reason, RecursionError):  # JSON that is nested as deep as can just be read
            reason = TextFallback(FallbackCause.MALFORMED, "RecursionError")
        self.counts[reason.cause] += 1
        if self.counts[reason.cause] == 1:
            _log.warning(
                "tokens.text_instead",
                cause=reason.cause.name.lower(),
                meaning=reason.cause.value,
                detail=reason.detail,
            )
        return request.prompts

    @abstractmethod
    def _at_once(self, request: InferenceRequest) -> tuple[Prompt, ...] | None:
        """Return what `ready` does. Raises `TextFallback`."""

    @abstractmethod
    async def _tokenized(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        """Return what `tokenize` does. Raises `TextFallback`."""

    @abstractmethod
    async def close(self) -> None:
        """Stop threads and close connections."""
