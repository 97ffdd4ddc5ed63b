"""The plug-in that configures how prompts become tokens.

Names, parameters and defaults are llm-d-router's, except that `tokenizer`, `chatTemplate`,
`chatTemplateKwargs`, `maxBytes`, `cacheBytes` and `patience` are Warmpick's.
"""

from typing import Annotated, Any, Literal

import msgspec

from epp.config.data_sources import Port
from epp.config.estimates import MediaEstimates
from epp.model.endpoint import LAST_PORT, Endpoint, target_of
from epp.policy.bounds import BoundedParameters, at_least
from epp.policy.effects import mapped_to, without_effect
from epp.policy.filters.labels import LabelSelectorFilter
from epp.policy.plugins import PluginParameters
from epp.printable import without_user
from epp.quantities import seconds
from epp.system.host_names import host_of

_DEFAULT_URL = "http://localhost:8000"
_NO_LIMITS = without_effect("a server that refuses a prompt leaves it text")
_EACH_ITS_OWN = mapped_to("the endpoints that each server turns out to have")
_HASHES = without_effect("the hashes of media alone are asked for")
_RenderMode = Literal["", "auto", "native", "legacy"]


class RenderPortRule(PluginParameters, frozen=True):
    """The endpoints that a selector selects (an empty one: all) render at a port of their own.

    To `base_port` the index of the endpoint's port among those of its pool is added.
    """

    base_port: Port
    selector: LabelSelectorFilter = LabelSelectorFilter()


class RenderBalancer(PluginParameters, frozen=True):
    """How the endpoints take turns."""

    type: Literal["", "round-robin"] = "round-robin"


class RenderDiscovery(PluginParameters, frozen=True):
    """Has the endpoints of the pool render, each in its turn; the timeout is a Go duration."""

    port_rules: list[RenderPortRule] = []
    """The ports at which they render, by the first rule that fits; without rules, their own."""
    load_balancer: RenderBalancer = RenderBalancer()
    attempt_timeout: str = ""
    """When to ask another one; empty: once the request's own time is over."""
    discover_model_limits: Annotated[bool, _NO_LIMITS] = False
    min_model_len: Annotated[int, _NO_LIMITS] = 0
    context_limit_label: Annotated[str, _NO_LIMITS] = ""

    def __post_init__(self) -> None:
        seconds(self.attempt_timeout or "5s")

    def url_of(self, endpoint: Endpoint) -> str:
        """Return where an endpoint renders; empty if it does not."""
        port = endpoint.port
        if self.port_rules:
            fitting = (rule for rule in self.port_rules if rule.selector.wants(endpoint.labels))
            rule = next(fitting, None)
            port = 0 if rule is None else rule.base_port + endpoint.port_index
        return f"http://{target_of(endpoint.address, port)}" if 0 < port <= LAST_PORT else ""


class RenderEndpoint(PluginParameters, frozen=True):
    """The servers, by a URL or as the endpoints of the pool; timeouts are Go durations."""

    url: str = _DEFAULT_URL
    """The server."""
    http: Annotated[str, mapped_to("`url`, as llm-d-router names it")] = ""
    """The same, as llm-d-inference-scheduler named it."""
    endpoint_discovery: RenderDiscovery | None = None
    """Has the endpoints of the pool asked in its place."""
    timeout: str = "5s"
    """How long a request of text waits."""
    mm_timeout: str = "30s"
    """How long one with media waits."""
    messages_render_mode: Annotated[_RenderMode, _EACH_ITS_OWN] = "auto"
    """By which endpoint Anthropic's messages are rendered."""
    responses_render_mode: Annotated[_RenderMode, _EACH_ITS_OWN] = "auto"
    """By which endpoint requests of the Responses API are rendered."""
    prefill_only: bool = False
    """Whether prompts are rendered as if one token were to be generated."""
    omit_mm_kwargs: Annotated[bool, _HASHES] = msgspec.field(default=True, name="omitMMKwargs")
    """Whether responses lack the processed media."""
    ca_cert_path: str = ""
    """Whom to trust, as a PEM file; empty: the system's authorities."""
    client_cert_path: str = ""
    """The certificate that is shown to servers that ask for one."""
    client_key_path: str = ""
    """Its key."""
    insecure_skip_verify: bool = False
    """Whether any certificate of a server is accepted."""

    def __post_init__(self) -> None:
        if self.http and self.url not in {"", _DEFAULT_URL}:
            raise ValueError("give only one of `url` and `http`")
        # Paths of requests follow it.
        if not host_of(self.server) or "?" in self.server or "#" in self.server:
            said = without_user(self.server)
            raise ValueError(f"`{said}` is not the URL of a server; write http://host:port")
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("`clientCertPath` and `clientKeyPath` require each other")
        if self.endpoint_discovery is not None:
            if self.server != _DEFAULT_URL:
                raise ValueError("give only one of `url` and `endpointDiscovery`")
            if self.ca_cert_path or self.client_cert_path or self.insecure_skip_verify:
                raise ValueError("`endpointDiscovery` has no TLS; write `url` instead")
        seconds(self.timeout or "5s")
        seconds(self.mm_timeout or "30s")

    @property
    def server(self) -> str:
        """The URL of the server, by whichever name it was given."""
        return self.http or self.url or _DEFAULT_URL

    @property
    def attempt_seconds(self) -> float | None:
        """Seconds after which another endpoint is asked; None: no limit of its own."""
        found = self.endpoint_discovery
        return seconds(found.attempt_timeout) if found and found.attempt_timeout else None


_NO_SIDECAR = without_effect(
    "the sidecar behind this socket is not asked: prompts stay text; write `vllm` or `tokenizer`"
)


class TokenProducer(BoundedParameters, frozen=True):
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
    max_bytes: Annotated[int, at_least(0, "bytes, such as 4194304")] = 4 << 20
    """Bytes of a body; a longer one stays text."""
    cache_bytes: Annotated[int, at_least(0, "bytes, such as 67108864")] = 64 << 20
    """Bytes that are kept of prompts and their tokens."""
    patience: str = "2s"
    """How long a request waits for its tokens, as a Go duration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sidecar = bool(self.uds_tokenizer_config)
        alone = self.model_name and not (self.tokenizer or sidecar)
        rendered = self.vllm is not None or bool(alone)
        if (self.estimate is not None) + rendered + bool(self.tokenizer) + sidecar > 1:
            raise ValueError(
                "only one of `estimate`, `vllm` (or `modelName`) and `tokenizer` can be given"
            )
        seconds(self.patience)

    @property
    def tokenizes(self) -> bool:
        """Whether prompts become tokens."""
        wanted = self.tokenizer or self.vllm or self.model_name
        return bool(wanted) and not self.uds_tokenizer_config
