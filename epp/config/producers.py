"""Producers: the plug-ins that configure how prompts become tokens and how caches are known.

Names, parameters and defaults are llm-d-router's, except that `tokenizer`, `chatTemplate`,
`chatTemplateKwargs`, `maxBytes`, `cacheBytes` and `patience` are Warmpick's. A parameter for
which nothing exists here is accepted where it would change nothing, and refused where it would.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from epp.config.estimates import MediaEstimates
from epp.errors import ConfigError
from epp.label_selector import parse_label_selector
from epp.policy.effects import mapped_to, without_effect
from epp.policy.plugins import PluginContext, Scorer
from epp.policy.producers import COLUMNS, PrefixMatchInfo
from epp.quantities import seconds

_ENTRY_TOKENS = 64
"""Tokens of an entry of llm-d-router's index, which raises smaller block sizes to 64."""
_LAST_PORT = 65_535
_ZMQ_ADDRESS = re.compile(r"(tcp://\S+:(\d{1,5}|\*)|ipc://\S+)")


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
    cache_bytes: int = 128 << 20
    """Memory that keeps the tokens of text that was tokenized before."""


class RenderEndpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
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


class TokenProducer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Configures tokenization; without `tokenizer`, `vllm` and `modelName` prompts stay text.

    `max_bytes` and `cache_bytes` are in bytes, `patience` is a Go duration.
    """

    model_name: str = ""
    estimate: MediaEstimates | None = None
    vllm: RenderEndpoint | None = None
    uds_tokenizer_config: Annotated[dict[str, Any] | None, _NO_SIDECAR] = None
    tokenizer: str = ""
    chat_template: str = ""
    chat_template_kwargs: dict[str, Any] = {}
    max_bytes: int = 4 << 20
    cache_bytes: int = 128 << 20
    patience: str = "2s"

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


_HASHED_AGAIN = without_effect("events carry the tokens, which are hashed again")


class TokenProcessor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Length and hashing of blocks of token ids."""

    block_size_tokens: int = 16
    block_size: int = 0
    hash_seed: Annotated[str, _HASHED_AGAIN] = ""
    hash_algorithm: Annotated[Literal["", "cbor-fnv", "xxh64"], _HASHED_AGAIN] = ""

    def __post_init__(self) -> None:
        if self.block_size_tokens < 0 or self.block_size < 0:
            raise ValueError("a block size must not be negative")

    @property
    def tokens(self) -> int:
        """The length of a block in tokens; the deprecated name counts where the other is 0."""
        return self.block_size_tokens or self.block_size or 16


class PodDiscovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Ports at which each pod publishes; a data-parallel rank adds its number to both."""

    socket_port: int = 5557
    replay_socket_port: int = 0
    pod_label_selector: str = ""
    pod_namespace: str = ""

    def __post_init__(self) -> None:
        parse_label_selector(self.pod_label_selector)
        if not (0 < self.socket_port <= _LAST_PORT and self.replay_socket_port <= _LAST_PORT):
            raise ValueError(f"a port is not in 1 to {_LAST_PORT}")


_BY_FORM = without_effect("the events of vLLM and SGLang are recognised by their form")


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Subscriptions to the KV events of engines: to each pod, and at an address of the picker's."""

    zmq_endpoint: str = ""
    topic_filter: str = "kv@"
    concurrency: Annotated[int, without_effect("one event loop reads all events")] = 4
    engine_type: Annotated[Literal["vllm", "sglang"], _BY_FORM] = "vllm"
    discover_pods: bool = True
    pod_discovery_config: PodDiscovery = PodDiscovery()

    def __post_init__(self) -> None:
        if self.zmq_endpoint and not _ZMQ_ADDRESS.fullmatch(self.zmq_endpoint):
            problem = "is not a ZMQ address; write tcp://0.0.0.0:5557"
            raise ValueError(f"`zmqEndpoint`: `{self.zmq_endpoint}` {problem}")

    @property
    def heard(self) -> bool:
        """Whether anything is listened to."""
        return bool(self.discover_pods or self.zmq_endpoint)


class IndexProducer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A producer of matches of prefixes. There is one index, and each answers from it."""

    def start(self, context: PluginContext) -> Any:  # noqa: ANN401 (what it answers)
        """Return what answers from the fleet's index (`PrefixMatchInfo`)."""
        return COLUMNS


_OWN_INDEX = without_effect("the index is in memory, and as large as the endpoints' caches")
_METRICS = without_effect(
    "the index is counted in `llm_d_epp_prefix_indexer_size` and `warmpick_endpoint_cache_*`"
)
_TIERS = without_effect("tiers are known by what engines report of them")
_EVENTS_SAY = mapped_to("a prompt that was sent counting as cached until events deny it")


class IndexMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """An index in memory, by the number of its keys and of pods for each."""

    size: int = 100_000_000
    pod_cache_size: int = 10


class IndexServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An index in a Redis or Valkey server."""

    address: str = ""


class IndexBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An index in memory, by its size."""

    size: str = "2GiB"


class BlockIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Where block hashes are kept; `metrics_logging_interval` is in nanoseconds."""

    in_memory_config: Annotated[IndexMemory | None, _OWN_INDEX] = None
    redis_config: Annotated[IndexServer | None, _OWN_INDEX] = None
    valkey_config: Annotated[IndexServer | None, _OWN_INDEX] = None
    cost_aware_memory_config: Annotated[IndexBytes | None, _OWN_INDEX] = None
    enable_metrics: Annotated[bool, _METRICS] = False
    metrics_logging_interval: Annotated[int, _METRICS] = 0


class CacheBackend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tier of caches, and what a block in it is worth."""

    name: str
    weight: float


class IndexerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The index of llm-d-router's."""

    kv_block_index_config: BlockIndex | None = None
    kv_cache_backend_configs: Annotated[list[CacheBackend], _TIERS] = []
    tokenizers_pool_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.tokenizers_pool_config is not None:
            raise ValueError("`tokenizersPoolConfig` does not exist; a token-producer makes tokens")


class PreciseProducer(IndexProducer, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Makes the engines' KV events the source of what their caches hold."""

    token_processor_config: TokenProcessor = TokenProcessor()
    indexer_config: IndexerConfig = IndexerConfig()
    kv_events_config: KvEventsConfig = KvEventsConfig()
    speculative_indexing: Annotated[bool, _EVENTS_SAY] = False
    speculative_ttl: Annotated[str, _EVENTS_SAY] = msgspec.field(
        default="2s", name="speculativeTTL"
    )

    def __post_init__(self) -> None:
        seconds(self.speculative_ttl or "2s")


class PrecisePrefixCacheScorer(PreciseProducer, frozen=True, forbid_unknown_fields=True):
    """A `precise-prefix-cache-producer`, unless the file has one, and the scorer of its matches."""

    indexer_config: Annotated[
        dict[str, Any], mapped_to("the picker's own index; tokens are a `token-producer`'s")
    ] = {}  # type: ignore[assignment]

    def start(self, context: PluginContext) -> Scorer:
        """Return the scorer."""
        from epp.policy.scorers.caches import PrefixCacheScorer  # noqa: PLC0415 (rarely needed)

        return PrefixCacheScorer().start(context)


_BLOCKS = without_effect("blocks are those that engines report")
_WHOLE = without_effect("prompts are matched whole")


class ApproxProducer(IndexProducer, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The fleet's index, for the file's first; any other one is an index of its own.

    Of the fleet's it bounds the modelled cache of endpoints that do not report their capacity. The
    others are plain LRUs of `lru_capacity_per_server` entries of 64 tokens, or of
    `block_size_tokens` if that is more; with `auto_tune`, of as many as an endpoint has blocks.
    """

    auto_tune: bool = True
    block_size_tokens: int = 16
    block_size: Annotated[int, _BLOCKS] = 0
    max_prefix_blocks_to_match: Annotated[int, _WHOLE] = 2048
    max_prefix_tokens_to_match: Annotated[int, _WHOLE] = 131_072
    lru_capacity_per_server: int = msgspec.field(default=31_250, name="lruCapacityPerServer")

    def __post_init__(self) -> None:
        if self.lru_capacity_per_server < 0:
            raise ValueError("`lruCapacityPerServer` must not be negative")

    def start(self, context: PluginContext) -> PrefixMatchInfo:
        """Return the fleet's index for the file's first; for any other one an index of its own."""
        if context.first_of_its_type:
            return COLUMNS
        from epp.policy.dataproducers.lru_prefixes import LruPrefixes  # noqa: PLC0415 (rarely needed)

        scale = max(_ENTRY_TOKENS, self.block_size_tokens) / _ENTRY_TOKENS
        entries = max(1, int(self.lru_capacity_per_server * scale))
        return LruPrefixes(context, entries, auto_tune=self.auto_tune)

    @property
    def capacity(self) -> int | None:
        """The assumed capacity of an endpoint that reports none, in tokens; None: the default."""
        return None if self.auto_tune else self.lru_capacity_per_server * _ENTRY_TOKENS


class MulticlusterApproxProducer(ApproxProducer, frozen=True, forbid_unknown_fields=True):
    """The same, where each endpoint is a cluster."""


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All producers of a configuration together.

    `tokens` None: prompts stay text. `kv_events` None: no engine is subscribed to; `base_model`
    names the model in events without an adapter. `token_block` is the length of blocks of token
    ids in tokens, None: the engines'. `capacity` is the assumed capacity of an endpoint that
    reports none, in tokens, None: the default. `warnings` name settings that have no effect.
    """

    tokens: TokenSettings | None = None
    kv_events: KvEventsConfig | None = None
    base_model: str = ""
    token_block: int | None = None
    capacity: int | None = None
    warnings: tuple[str, ...] = ()


_NOTHING_HEARD = (
    "precise-prefix-cache-producer: no KV events are received: `kvEventsConfig.discoverPods` is"
    " false, and there is no `zmqEndpoint`"
)


def producer_settings(plugins: Iterable[object]) -> ProducerSettings:
    """Combine the producers among `plugins`. Raises `ConfigError` where two contradict each other.

    llm-d-router has one approximate producer for each tier of caches; here the first counts.
    """
    each = list(plugins)
    makers = [plugin.settings() for plugin in each if isinstance(plugin, TokenProducer)]
    tokens = [settings for settings in makers if settings is not None]
    precise = [plugin for plugin in each if type(plugin) is PreciseProducer]
    precise = precise or [plugin for plugin in each if isinstance(plugin, PreciseProducer)]
    approx = [plugin for plugin in each if isinstance(plugin, ApproxProducer)]
    if len(tokens) > 1:
        raise ConfigError("a second `token-producer` makes tokens of the same prompts", "plugins")
    if len(precise) > 1:
        raise ConfigError(
            "a second `precise-prefix-cache-producer` would subscribe twice", "plugins"
        )
    events = precise[0].kv_events_config if precise else None
    return ProducerSettings(
        tokens=tokens[0] if tokens else None,
        kv_events=events,
        base_model=tokens[0].model if tokens else "",
        token_block=precise[0].token_processor_config.tokens if precise else None,
        capacity=approx[0].capacity if approx else None,
        warnings=(_NOTHING_HEARD,) if events is not None and not events.heard else (),
    )
