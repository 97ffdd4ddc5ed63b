"""The plug-in types that profiles consist of: filters, scorers, pickers, and what they replace."""

from typing import Annotated, Any

from epp.config.producers import PreciseProducer
from epp.config.quantities import seconds
from epp.policy.conformance import HeaderBasedTestingFilter
from epp.policy.effects import mapped_to
from epp.policy.filters.caches import PrefixCacheAffinityFilter, SloHeadroomTierFilter
from epp.policy.filters.detectors import (
    ConcurrencyDetector,
    MaxSaturationDetector,
    UtilizationDetector,
)
from epp.policy.filters.labels import (
    ByLabelFilter,
    DecodeFilter,
    EncodeFilter,
    LabelSelectorFilter,
    PrefillFilter,
    TopologyAffinityFilter,
)
from epp.policy.filters.load import EndpointAttributeFilter, UtilizationFilter
from epp.policy.pickers import (
    LeastRequestPicker,
    LeastTtftPicker,
    MaxScorePicker,
    RandomPicker,
    RoundRobinPicker,
    WeightedRandomPicker,
)
from epp.policy.plugins import PluginContext, Scorer
from epp.policy.scorers.attributes import (
    EndpointAttributeScorer,
    EndpointAttributeWeightScorer,
    MulticlusterKvCacheUtilizationScorer,
    MulticlusterQueueScorer,
)
from epp.policy.scorers.caches import (
    LoraAffinityScorer,
    MulticlusterPrefixCacheScorer,
    MultimodalCacheScorer,
    NoHitLruScorer,
    PrefixCacheScorer,
)
from epp.policy.scorers.labels import (
    ContextLengthAware,
    HeaderLabelAffinityScorer,
    TopologyAffinityScorer,
)
from epp.policy.scorers.latency import LatencyScorer
from epp.policy.scorers.load import (
    ActiveRequestScorer,
    KvCacheUtilizationScorer,
    LeastTtftScorer,
    LoadAwareScorer,
    QueueScorer,
    RunningRequestsScorer,
    TokenLoadScorer,
)
from epp.policy.sessions import (
    MulticlusterSessionAffinityFilter,
    SessionAffinityFilter,
    SessionAffinityScorer,
)


class PrecisePrefixCacheScorer(PreciseProducer, frozen=True, forbid_unknown_fields=True):
    """A `precise-prefix-cache-producer`, unless the file has one, and the scorer of its matches."""

    indexer_config: Annotated[
        dict[str, Any], mapped_to("the picker's own index; tokens are a `token-producer`'s")
    ] = {}  # type: ignore[assignment]  # noqa: RUF012 (old files have more in it)

    def __post_init__(self) -> None:
        seconds(self.speculative_ttl or "2s")

    def start(self, context: PluginContext) -> Scorer:
        """Return the scorer."""
        return PrefixCacheScorer().start(context)


class UtilizationDetectorParameters(UtilizationDetector, frozen=True):
    """The detector, where its duration is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds(self.metrics_staleness_threshold)


class ActiveRequestParameters(ActiveRequestScorer, frozen=True):
    """The scorer, where its duration is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds(self.request_timeout or "2m")


SCORERS: dict[str, type[Any]] = {
    "queue-scorer": QueueScorer,
    "running-requests-size-scorer": RunningRequestsScorer,
    "kv-cache-utilization-scorer": KvCacheUtilizationScorer,
    "load-aware-scorer": LoadAwareScorer,
    "active-request-scorer": ActiveRequestParameters,
    "token-load-scorer": TokenLoadScorer,
    "prefix-cache-scorer": PrefixCacheScorer,
    "precise-prefix-cache-scorer": PrecisePrefixCacheScorer,
    "no-hit-lru-scorer": NoHitLruScorer,
    "mm-embeddings-cache-scorer": MultimodalCacheScorer,
    "lora-affinity-scorer": LoraAffinityScorer,
    "latency-scorer": LatencyScorer,
    "session-affinity-scorer": SessionAffinityScorer,
    "context-length-aware": ContextLengthAware,
    "header-label-affinity-scorer": HeaderLabelAffinityScorer,
    "topology-affinity-scorer": TopologyAffinityScorer,
    "endpoint-attribute-scorer": EndpointAttributeScorer,
    "endpoint-attribute-weight-scorer": EndpointAttributeWeightScorer,
    "multicluster-queue-scorer": MulticlusterQueueScorer,
    "multicluster-kv-cache-utilization-scorer": MulticlusterKvCacheUtilizationScorer,
    "multicluster-prefix-cache-scorer": MulticlusterPrefixCacheScorer,
    "least-ttft-scorer": LeastTtftScorer,
}

FILTERS: dict[str, type[Any]] = {
    "decode-filter": DecodeFilter,
    "prefill-filter": PrefillFilter,
    "encode-filter": EncodeFilter,
    "label-selector-filter": LabelSelectorFilter,
    "by-label": ByLabelFilter,
    "by-label-selector": LabelSelectorFilter,
    "topology-affinity-filter": TopologyAffinityFilter,
    "session-affinity-filter": SessionAffinityFilter,
    "multicluster-session-affinity-filter": MulticlusterSessionAffinityFilter,
    "prefix-cache-affinity-filter": PrefixCacheAffinityFilter,
    "slo-headroom-tier-filter": SloHeadroomTierFilter,
    "utilization-filter": UtilizationFilter,
    "endpoint-attribute-filter": EndpointAttributeFilter,
    "utilization-detector": UtilizationDetectorParameters,
    "concurrency-detector": ConcurrencyDetector,
    "max-saturation-detector": MaxSaturationDetector,
    "header-based-testing-filter": HeaderBasedTestingFilter,
}
"""Filters, and the detectors of saturation, most of which are filters too."""

PICKERS: dict[str, type[Any]] = {
    "max-score-picker": MaxScorePicker,
    "weighted-random-picker": WeightedRandomPicker,
    "random-picker": RandomPicker,
    "least-ttft-picker": LeastTtftPicker,
    "least-request-picker": LeastRequestPicker,
    "round-robin-picker": RoundRobinPicker,
}

REPLACED_TYPES = {
    "precise-prefix-cache-scorer": (
        "write `precise-prefix-cache-producer` and `prefix-cache-scorer`"
    ),
    "by-label": "write `label-selector-filter`, or the filter of the role",
    "by-label-selector": "write `label-selector-filter`",
}
"""Deprecated and removed types of these, and what to write instead."""
