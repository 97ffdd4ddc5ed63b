"""The plug-in that configures how prompts become tokens.

Names, parameters and defaults are llm-d-router's, except that `tokenizer`, `chatTemplate`,
`chatTemplateKwargs`, `maxBytes`, `cacheBytes` and `patience` are Warmpick's.
"""

import re
from typing import Annotated, Any

import msgspec

from epp.config.estimates import MediaEstimates
from epp.policy.effects import without_effect
from epp.policy.plugins import PluginParameters
from epp.quantities import seconds


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the tokenizer: the folder `tokenizer`, or else the server at `url`."""

    tokenizer: str = ""
    """A folder with a tokenizer; empty: none."""
    chat_template: str = ""
    """The chat template, in place of the folder's; empty: the folder's."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables of the chat template."""
    url: str = ""
    """The server that renders and tokenizes; empty: none."""
    model: str = ""
    """The model that the server is asked for; empty: the request's own."""
    timeout: float = 5.0
    """Seconds to wait for the server."""
    media_timeout: float = 30.0
    """The same for requests with images, audio or video."""
    patience: float = 2.0
    """Seconds to wait for the tokenizer in process."""
    max_bytes: int = 4 << 20
    """The longest body that is tokenized; a longer one stays text."""
    cache_bytes: int = 64 << 20
    """Memory that keeps the tokens of text that was tokenized before."""


class RenderEndpoint(PluginParameters, frozen=True):
    """A vLLM server that renders chat templates and tokenizes; timeouts are Go durations."""

    url: str = "http://localhost:8000"
    timeout: str = "5s"
    mm_timeout: str = "30s"

    def __post_init__(self) -> None:
        if not re.match(r"https?://[^/]", self.url):
            raise ValueError(f"`{self.url}` is not a URL; write http://host:port")
        seconds(self.timeout or "5s")
        seconds(self.mm_timeout or "30s")


_NO_SIDECAR = without_effect(
    "the sidecar behind this socket is not asked: prompts stay text; write `vllm` or `tokenizer`"
)


class TokenProducer(PluginParameters, frozen=True):
    """Configures tokenization; without `tokenizer`, `vllm` and `modelName` prompts stay text."""

    model_name: str = ""
    """The model that the server is asked for; empty: the request's own."""
    estimate: MediaEstimates | None = None
    """How many tokens media have, if nothing is tokenized."""
    vllm: RenderEndpoint | None = None
    """The vLLM servers whose render endpoint is asked."""
    uds_tokenizer_config: Annotated[dict[str, Any] | None, _NO_SIDECAR] = None
    tokenizer: str = ""
    """The folder of a tokenizer, which the picker runs itself."""
    chat_template: str = ""
    """A file with a chat template, in place of the tokenizer's."""
    chat_template_kwargs: dict[str, Any] = {}
    """What the template is given with each request."""
    max_bytes: int = 4 << 20
    """Bytes of a body; a longer one stays text."""
    cache_bytes: int = 64 << 20
    """Bytes that are kept of prompts and their tokens."""
    patience: str = "2s"
    """How long a request waits for its tokens, as a Go duration."""

    def __post_init__(self) -> None:
        sidecar = bool(self.uds_tokenizer_config)
        alone = self.model_name and not (self.tokenizer or sidecar)
        rendered = self.vllm is not None or bool(alone)
        if (self.estimate is not None) + rendered + bool(self.tokenizer) + sidecar > 1:
            raise ValueError(
                "only one of `estimate`, `vllm` (or `modelName`) and `tokenizer` can be given"
            )
        if min(self.max_bytes, self.cache_bytes) < 0:
            raise ValueError("a size must not be negative")
        seconds(self.patience)

    def settings(self) -> TokenSettings | None:
        """Return the settings of the tokenizer; None: prompts stay text."""
        if not (self.tokenizer or self.vllm or self.model_name) or self.uds_tokenizer_config:
            return None
        endpoint = self.vllm or RenderEndpoint()
        return TokenSettings(
            tokenizer=self.tokenizer,
            chat_template=self.chat_template,
            chat_template_kwargs=self.chat_template_kwargs,
            url="" if self.tokenizer else endpoint.url,
            model=self.model_name,
            timeout=seconds(endpoint.timeout or "5s"),
            media_timeout=seconds(endpoint.mm_timeout or "30s"),
            patience=seconds(self.patience),
            max_bytes=self.max_bytes,
            cache_bytes=self.cache_bytes,
        )
