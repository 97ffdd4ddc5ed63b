"""The plug-ins that configure what is known about the caches of endpoints.

Names, parameters and defaults are llm-d-router's. A parameter without a counterpart here is
accepted if it would not change anything, and refused otherwise.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from epp.config.estimates import group
from epp.config.kv_events import KvEventsConfig, TokenProcessor
from epp.config.tokens import TokenProducer
from epp.errors import ConfigError
from epp.policy.attribute_sources import FROM_FLEET, PrefixMatchInfo
from epp.policy.bounds import BoundedParameters, at_least
from epp.policy.effects import mapped_to, without_effect
from epp.policy.plugins import PluginContext, PluginParameters, Scorer
from epp.quantities import seconds

_ENTRY_TOKENS = 64
"""Tokens of an entry of llm-d-router's index, which raises smaller block sizes to 64."""


_OWN_INDEX = without_effect("the index is in memory, and as large as the endpoints' caches")
_METRICS = without_effect("`llm_d_epp_kv_cache_index_*` are always counted, and not logged")
_BESIDE = without_effect("it is read beside `indexerConfig`, not in it, as in llm-d-router")
_ALL_MATCH = without_effect("a match may be as long as the prompt")
_TIERS = without_effect("tiers are those that engines report")
_BY_TOKENS = without_effect("KV events are matched by their tokens, not by sessions")
_EVENTS_SAY = mapped_to("sent prompts, which count as cached until events deny it")


_SERVER = group(_OWN_INDEX, address=(str, ""), backendType=(str, ""), enableRDMA=(bool, False))
"""An index in a Redis or Valkey server; the last two fields are those of 0.9."""

if TYPE_CHECKING:
    BlockIndex = PluginParameters
else:
    BlockIndex, _ = group(
        inMemoryConfig=group(_OWN_INDEX, size=(int, 100_000_000), podCacheSize=(int, 10)),
        redisConfig=_SERVER,
        valkeyConfig=_SERVER,
        costAwareMemoryConfig=group(_OWN_INDEX, size=(str, "2GiB")),
        enableMetrics=(Annotated[bool, _METRICS], False),
        metricsLoggingInterval=(Annotated[int, _METRICS], 0),  # nanoseconds
        maxPrefixBlocksToMatch=(Annotated[int, _ALL_MATCH], 0),
    )


class CacheBackend(PluginParameters, frozen=True):
    """A tier of caches, and the weight of a block in it."""

    name: str
    weight: float


class IndexerConfig(PluginParameters, frozen=True):
    """The configuration of llm-d-router's index."""

    kv_block_index_config: BlockIndex | None = None
    kv_cache_backend_configs: Annotated[list[CacheBackend], _TIERS] = []
    token_processor_config: Annotated[dict[str, Any] | None, _BESIDE] = None
    tokenizers_pool_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.tokenizers_pool_config is not None:
            raise ValueError("`tokenizersPoolConfig` is not supported; add a token-producer")


class PreciseProducer(PluginParameters, frozen=True):
    """Makes the engines' KV events the source of their caches' contents."""

    token_processor_config: TokenProcessor = TokenProcessor()
    indexer_config: IndexerConfig = IndexerConfig()
    kv_events_config: KvEventsConfig = KvEventsConfig()
    speculative_indexing: Annotated[bool, _EVENTS_SAY] = False
    speculative_ttl: Annotated[str, _EVENTS_SAY] = msgspec.field(
        default="2s", name="speculativeTTL"
    )
    session_manager: Annotated[str, _BY_TOKENS] = ""

    def __post_init__(self) -> None:
        seconds(self.speculative_ttl or "2s")

    def start(self, context: PluginContext) -> Any:  # noqa: ANN401 (what it answers)
        """Return a producer that answers from the fleet's index (`PrefixMatchInfo`)."""
        return FROM_FLEET


class SessionManager(PluginParameters, frozen=True):
    """Marks the requests of a session, for KV events to name it."""

    effect = _BY_TOKENS
    deployment_id: str = msgspec.field(name="deploymentID")
    hmac_key_file: str
    token_producer: str = ""
    event_correlation_enabled: bool = False
    binding_ttl: str | int = msgspec.field(default="5m", name="bindingTTL")
    max_bindings: int = 100_000


class PrecisePrefixCacheScorer(PreciseProducer, frozen=True):
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
_HASHED_HERE = without_effect("prompts are hashed from request bodies")


class ApproxProducer(BoundedParameters, frozen=True):
    """The first in a file is the fleet's index; any other one is an index of its own.

    The first one bounds the modelled cache of endpoints that do not report their capacity. The
    others are plain LRUs; with `auto_tune` they have as many entries as an endpoint has blocks.
    `lru_capacity_per_server` counts entries of 64 tokens, or of `block_size_tokens` if that is
    more.
    """

    auto_tune: bool = True
    block_size_tokens: int = 16
    block_size: Annotated[int, _BLOCKS] = 0
    max_prefix_blocks_to_match: Annotated[int, _WHOLE] = 2048
    max_prefix_tokens_to_match: Annotated[int, _WHOLE] = 131_072
    lru_capacity_per_server: Annotated[int, at_least(0, "entries, such as 31250")] = 31_250
    prefix_hash_source: Annotated[Literal["body", "metadata", ""], _HASHED_HERE] = "body"

    def start(self, context: PluginContext) -> PrefixMatchInfo:
        """Return the fleet's index for the first in the file, and a separate one for any other."""
        if context.first_of_its_type:
            return FROM_FLEET
        from epp.policy.producers.lru_prefixes import LruPrefixes  # noqa: PLC0415 (rarely needed)

        entries = max(1, self._tokens // _ENTRY_TOKENS)
        return LruPrefixes(context, entries, auto_tune=self.auto_tune)

    @property
    def capacity(self) -> int | None:
        """The assumed capacity of an endpoint that reports none, in tokens; None: the default."""
        return None if self.auto_tune else self._tokens

    @property
    def _tokens(self) -> int:
        return self.lru_capacity_per_server * max(_ENTRY_TOKENS, self.block_size_tokens)


class MulticlusterApproxProducer(ApproxProducer, frozen=True):
    """The same among clusters, each of which is an endpoint."""


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all producers of a configuration together.

    `tokens` None: prompts stay text. `kv_events` None: no engine is subscribed to; `base_model`
    names the model in events without an adapter. `token_block` is the length of blocks of token
    ids in tokens, None: the engines'. `capacity` is the assumed capacity of an endpoint that
    reports none, in tokens, None: the default. `warnings` name settings that have no effect.
    """

    tokens: TokenProducer | None = None
    kv_events: KvEventsConfig | None = None
    base_model: str = ""
    token_block: int | None = None
    capacity: int | None = None
    warnings: tuple[str, ...] = ()


_NOTHING_HEARD = (
    "precise-prefix-cache-producer: no KV events are received: `kvEventsConfig.discoverPods` is"
    " false, and there is no `zmqEndpoint`"
)
_REPORTED_FIRST = (
    "approx-prefix-cache-producer: `lruCapacityPerServer` is used for endpoints that report no"
    " capacity; where others have a second tier, say so by the label `warmpick.io/offload-tokens`"
)


def cache_settings(plugins: Iterable[object]) -> CacheSettings:
    """Combine the producers among `plugins`. Raises `ConfigError` if two contradict each other.

    llm-d-router has one approximate producer for each tier of caches; here the first counts.
    """
    each = list(plugins)
    makers = [plugin for plugin in each if isinstance(plugin, TokenProducer)]
    tokens = [plugin for plugin in makers if plugin.tokenizes]
    precise = [plugin for plugin in each if type(plugin) is PreciseProducer]
    precise = precise or [plugin for plugin in each if isinstance(plugin, PreciseProducer)]
    approx = [plugin for plugin in each if isinstance(plugin, ApproxProducer)]
    if len(tokens) > 1:
        raise ConfigError("there are several `token-producer` plug-ins; keep one", "plugins")
    if len(precise) > 1:
        raise ConfigError(
            "there are several `precise-prefix-cache-producer` plug-ins; keep one", "plugins"
        )
    events = precise[0].kv_events_config if precise else None
    return CacheSettings(
        tokens=tokens[0] if tokens else None,
        kv_events=events,
        base_model=tokens[0].model_name if tokens else "",
        token_block=precise[0].token_processor_config.tokens if precise else None,
        capacity=approx[0].capacity if approx else None,
        warnings=(
            *((_NOTHING_HEARD,) if events is not None and not events.heard else ()),
            *((_REPORTED_FIRST,) if approx and not approx[0].auto_tune else ()),
        ),
    )
