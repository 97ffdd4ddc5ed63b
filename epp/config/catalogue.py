"""The catalogue of plug-in types: where the class of each is.

A class is imported when a file names its type, so that a start pays for no other.
"""

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

import msgspec

from epp.policy.effects import Effect, mapped_to, without_effect

PLACES: dict[str, str] = {
    "queue-scorer": "epp.policy.scorers.load:QueueScorer",
    "running-requests-size-scorer": "epp.policy.scorers.load:RunningRequestsScorer",
    "kv-cache-utilization-scorer": "epp.policy.scorers.load:KvCacheUtilizationScorer",
    "kv-cache-scorer": "epp.policy.scorers.load:KvCacheUtilizationScorer",
    "load-aware-scorer": "epp.policy.scorers.load:LoadAwareScorer",
    "token-load-scorer": "epp.policy.scorers.load:TokenLoadScorer",
    "least-ttft-scorer": "epp.policy.scorers.load:LeastTtftScorer",
    "active-request-scorer": "epp.policy.scorers.load:ActiveRequestScorer",
    "prefix-cache-scorer": "epp.policy.scorers.caches:PrefixCacheScorer",
    "no-hit-lru-scorer": "epp.policy.scorers.caches:NoHitLruScorer",
    "mm-embeddings-cache-scorer": "epp.policy.scorers.caches:MultimodalCacheScorer",
    "lora-affinity-scorer": "epp.policy.scorers.caches:LoraAffinityScorer",
    "multicluster-prefix-cache-scorer": "epp.policy.scorers.caches:PrefixCacheScorer",
    "latency-scorer": "epp.policy.scorers.latency:LatencyScorer",
    "predicted-latency-scorer": "epp.policy.scorers.latency:PredictedLatencyScorer",
    "slo-aware-routing": "epp.policy.scorers.latency:PredictedLatencyScorer",
    "slo-scorer": "epp.policy.scorers.latency:PredictedLatencyScorer",
    "session-affinity-scorer": "epp.policy.sessions:SessionAffinityScorer",
    "session-affinity-filter": "epp.policy.sessions:SessionAffinityFilter",
    "multicluster-session-affinity-filter": "epp.policy.sessions:SessionAffinityFilter",
    "thunder-agent": "epp.policy.sessions:ThunderAgent",
    "context-length-aware": "epp.policy.scorers.labels:ContextLengthAware",
    "header-label-affinity-scorer": "epp.policy.scorers.labels:HeaderLabelAffinityScorer",
    "topology-affinity-scorer": "epp.policy.scorers.labels:TopologyAffinityScorer",
    "multicluster-topology-scorer": "epp.policy.scorers.labels:MulticlusterTopologyScorer",
    "endpoint-attribute-scorer": "epp.policy.scorers.attributes:EndpointAttributeScorer",
    "endpoint-attribute-weight-scorer": (
        "epp.policy.scorers.attributes:EndpointAttributeWeightScorer"
    ),
    "multicluster-queue-scorer": "epp.policy.scorers.attributes:MulticlusterQueueScorer",
    "multicluster-kv-cache-utilization-scorer": (
        "epp.policy.scorers.attributes:MulticlusterKvCacheUtilizationScorer"
    ),
    "decode-filter": "epp.policy.filters.labels:DecodeFilter",
    "prefill-filter": "epp.policy.filters.labels:PrefillFilter",
    "encode-filter": "epp.policy.filters.labels:EncodeFilter",
    "label-selector-filter": "epp.policy.filters.labels:LabelSelectorFilter",
    "by-label": "epp.policy.filters.labels:ByLabelFilter",
    "by-label-selector": "epp.policy.filters.labels:LabelSelectorFilter",
    "topology-affinity-filter": "epp.policy.filters.labels:TopologyAffinityFilter",
    "prefix-cache-affinity-filter": "epp.policy.filters.caches:PrefixCacheAffinityFilter",
    "slo-headroom-tier-filter": "epp.policy.filters.caches:SloHeadroomTierFilter",
    "utilization-filter": "epp.policy.filters.load:UtilizationFilter",
    "endpoint-attribute-filter": "epp.policy.filters.load:EndpointAttributeFilter",
    "slow-start-filter": "epp.policy.filters.slow_start:SlowStartFilter",
    "concurrency-detector": "epp.policy.filters.detectors:ConcurrencyDetector",
    "max-saturation-detector": "epp.policy.filters.detectors:MaxSaturationDetector",
    "utilization-detector": "epp.policy.filters.detectors:UtilizationDetector",
    "header-based-testing-filter": "epp.policy.conformance:HeaderBasedTestingFilter",
    "destination-endpoint-served-verifier": "epp.policy.conformance:ServedVerifier",
    "aibrix-prefix-cache-scorer": "epp.policy.peers.aibrix:AiBrixPrefixCacheScorer",
    "aibrix-vtc-basic-scorer": "epp.policy.peers.aibrix:AiBrixVtcBasicScorer",
    "d2lpm-scorer": "epp.policy.peers.d2lpm:D2LpmScorer",
    "dualmap-scorer": "epp.policy.peers.dualmap:DualMapScorer",
    "dynamo-cost-scorer": "epp.policy.peers.dynamo:DynamoCostScorer",
    "kthena-least-request-scorer": "epp.policy.peers.kthena:KthenaLeastRequestScorer",
    "kthena-least-latency-scorer": "epp.policy.peers.kthena:KthenaLeastLatencyScorer",
    "kthena-prefix-cache-scorer": "epp.policy.peers.kthena:KthenaPrefixCacheScorer",
    "kubeai-chwbl-scorer": "epp.policy.peers.kubeai:KubeAiChwblScorer",
    "lmetric-scorer": "epp.policy.peers.lmetric:LMetricScorer",
    "preble-e2-scorer": "epp.policy.peers.preble:PrebleE2Scorer",
    "production-stack-prefix-aware-scorer": (
        "epp.policy.peers.production_stack:ProductionStackPrefixAwareScorer"
    ),
    "production-stack-load-aware-scorer": (
        "epp.policy.peers.production_stack:ProductionStackLoadAwareScorer"
    ),
    "production-stack-session-scorer": (
        "epp.policy.peers.production_stack:ProductionStackSessionScorer"
    ),
    "ray-prefix-affinity-scorer": "epp.policy.peers.ray_serve:RayPrefixAffinityScorer",
    "sglang-cache-aware-scorer": "epp.policy.peers.sglang:SglangCacheAwareScorer",
    "smg-cache-aware-scorer": "epp.policy.peers.smg:SmgCacheAwareScorer",
    "smg-prefix-hash-scorer": "epp.policy.peers.smg:SmgPrefixHashScorer",
    "smg-least-load-scorer": "epp.policy.peers.smg:SmgLeastLoadScorer",
    "smg-power-of-two-picker": "epp.policy.peers.smg:SmgPowerOfTwoPicker",
    "vllm-cache-aware-scorer": "epp.policy.peers.vllm_router:VllmCacheAwareScorer",
    "vllm-kv-aware-scorer": "epp.policy.peers.vllm_router:VllmKvAwareScorer",
    "vllm-consistent-hash-scorer": "epp.policy.peers.vllm_router:VllmConsistentHashScorer",
    "vllm-sticky-least-loaded-scorer": "epp.policy.peers.vllm_router:VllmStickyLeastLoadedScorer",
    "max-score-picker": "epp.policy.pickers:MaxScorePicker",
    "weighted-random-picker": "epp.policy.pickers:WeightedRandomPicker",
    "random-picker": "epp.policy.pickers:RandomPicker",
    "least-ttft-picker": "epp.policy.pickers:LeastTtftPicker",
    "least-request-picker": "epp.policy.pickers:LeastRequestPicker",
    "round-robin-picker": "epp.policy.pickers:RoundRobinPicker",
    "single-profile-handler": "epp.policy.profile:SingleProfileHandler",
    "disagg-profile-handler": "epp.policy.disaggregation.handler:DisaggProfileHandler",
    "pd-profile-handler": "epp.policy.disaggregation.handler:PdProfileHandler",
    "disagg-headers-handler": "epp.policy.disaggregation.handler:DisaggHeadersHandler",
    "prefill-header-handler": "epp.policy.disaggregation.handler:DisaggHeadersHandler",
    "header-profile-handler": "epp.policy.handlers:HeaderProfileHandler",
    "slo-aware-profile-handler": "epp.policy.handlers:SloAwareProfileHandler",
    "data-parallel-profile-handler": "epp.policy.handlers:DataParallelProfileHandler",
    "always-disagg-pd-decider": "epp.policy.disaggregation.deciders:AlwaysDisaggPdDecider",
    "always-disagg-multimodal-decider": (
        "epp.policy.disaggregation.deciders:AlwaysDisaggMultimodalDecider"
    ),
    "prefix-based-pd-decider": "epp.policy.disaggregation.deciders:PrefixBasedPdDecider",
    "p2p-source-producer": "epp.policy.disaggregation.kv_source:P2pSourceProducer",
    "disaggregatedset-rollout-screener": (
        "epp.policy.disaggregation.rollout:DisaggregatedSetRolloutScreener"
    ),
    "token-producer": "epp.config.tokens:TokenProducer",
    "tokenizer": "epp.config.tokens:TokenProducer",
    "approx-prefix-cache-producer": "epp.config.prefix_caches:ApproxProducer",
    "precise-prefix-cache-producer": "epp.config.prefix_caches:PreciseProducer",
    "multicluster-approx-prefix-cache-producer": (
        "epp.config.prefix_caches:MulticlusterApproxProducer"
    ),
    "precise-prefix-cache-scorer": "epp.config.prefix_caches:PrecisePrefixCacheScorer",
    "burst-prefix-cache-producer": "epp.policy.producers.mapped:BurstPrefixCacheProducer",
    "latency-observer-producer-hub": "epp.policy.producers.mapped:LatencyObserverProducer",
    "latency-observation-scorer-hub": "epp.policy.producers.mapped:LatencyObservationScorer",
    "sojourn-time-observer-hub": "epp.policy.producers.mapped:SojournTimeObserver",
    "mrl-scorer-hub": "epp.policy.producers.mapped:MeanResidualLifeScorer",
    "session-manager": "epp.config.prefix_caches:SessionManager",
    "session-interturn-latency-producer": "epp.policy.producers.mapped:InterTurnLatencyProducer",
    "kv-cache-hint": "epp.policy.producers.mapped:KvCacheHint",
    "session-state-producer": "epp.policy.producers.mapped:SessionStateProducer",
    "k8s-peer-discovery": "epp.policy.producers.mapped:PeerDiscovery",
    "inflight-load-producer": "epp.policy.producers.in_flight_load:InFlightLoadProducer",
    "predicted-latency-producer": (
        "epp.policy.producers.predicted_latency:PredictedLatencyProducer"
    ),
    "slo-request-tracker": "epp.policy.producers.predicted_latency:PredictedLatencyProducer",
    "mm-embeddings-cache-producer": "epp.policy.producers.media_cache:MediaCacheProducer",
    "session-id-producer": "epp.policy.producers.identity:SessionIdProducer",
    "agent-identity": "epp.policy.producers.identity:AgentIdentity",
    "outlen-bucket": "epp.policy.producers.identity:OutputLengthBucket",
    "latency-slo-admitter": "epp.policy.admitters:LatencySloAdmitter",
    "probabilistic-admitter": "epp.policy.admitters:ProbabilisticAdmitter",
    "request-attribute-reporter": "epp.policy.reporter:RequestAttributeReporter",
    "file-discovery": "epp.config.data_sources:FileDiscoveryConfig",
    "multicluster-file-discovery": "epp.config.data_sources:MulticlusterFileDiscovery",
    "redis-syncer": "epp.config.data_sources:RedisSyncer",
    "redis-state-store": "epp.config.data_sources:RedisSyncer",
    "metrics-data-source": "epp.config.data_sources:MetricsDataSource",
    "multicluster-metrics-data-source": "epp.config.data_sources:MulticlusterMetricsDataSource",
    "models-data-source": "epp.config.data_sources:ModelsDataSource",
    "models-responder": "epp.config.data_sources:ModelsResponder",
    "dcgm-data-source": "epp.config.data_sources:DcgmDataSource",
    "endpoint-notification-source": "epp.config.data_sources:EndpointNotificationSource",
    "k8s-notification-source": "epp.config.data_sources:K8sNotificationSource",
    "core-metrics-extractor": "epp.config.data_extractors:CoreMetricsExtractor",
    "model-server-protocol-metrics": "epp.config.data_extractors:CoreMetricsExtractor",
    "multicluster-metrics-extractor": "epp.config.data_extractors:MulticlusterMetricsExtractor",
    "models-data-extractor": "epp.config.data_extractors:ModelsExtractor",
    "model-server-protocol-models": "epp.config.data_extractors:ModelsExtractor",
    "dcgm-extractor": "epp.config.data_extractors:DcgmExtractor",
    "topology-extractor": "epp.policy.producers.endpoint_facts:TopologyExtractor",
    "label-producer": "epp.policy.producers.endpoint_facts:LabelProducer",
    "global-strict-fairness-policy": "epp.policy.flow.fairness:GlobalStrictFairnessPolicy",
    "round-robin-fairness-policy": "epp.policy.flow.fairness:RoundRobinFairnessPolicy",
    "program-aware-fairness": "epp.policy.flow.program_fairness:ProgramAwareFairness",
    "fcfs-ordering-policy": "epp.policy.flow.orders:FcfsOrderingPolicy",
    "edf-ordering-policy": "epp.policy.flow.orders:EdfOrderingPolicy",
    "slo-deadline-ordering-policy": "epp.policy.flow.orders:SloDeadlineOrderingPolicy",
    "static-usage-limit-policy": "epp.policy.flow.usage_limits:StaticUsageLimitPolicy",
    "priority-holdback-policy": "epp.policy.flow.usage_limits:PriorityHoldbackPolicy",
    "soft-reflective-ceiling-policy": "epp.policy.flow.usage_limits:SoftReflectiveCeilingPolicy",
    "strict-band-selection-policy": "epp.config.flow_control:StrictBandSelectionPolicy",
    "capacity-ledger": "epp.config.flow_control:CapacityLedger",
    "sheddable-eviction-filter": "epp.config.flow_control:EvictionPolicy",
    "priority-then-time-eviction-order-policy": "epp.config.flow_control:EvictionPolicy",
    "eviction-sheddable-filter": "epp.config.flow_control:EvictionPolicy",
    "eviction-priority-then-time-ordering": "epp.config.flow_control:EvictionPolicy",
    "openai-parser": "epp.config.parsers:OpenAiParser",
    "anthropic-parser": "epp.config.parsers:AnthropicParser",
    "vllmhttp-parser": "epp.config.parsers:VllmHttpParser",
    "sglanghttp-parser": "epp.config.parsers:SglangHttpParser",
    "vllmgrpc-parser": "epp.config.parsers:VllmGrpcParser",
    "vertexai-parser": "epp.config.parsers:VertexAiParser",
    "passthrough-parser": "epp.config.parsers:PassthroughParser",
}
"""The place of each type's class, written as in entry points.

llm-d-router's plug-ins have its names, parameters and defaults; those of `epp.policy.peers` are
other routers' algorithms. Warmpick's own are `least-ttft-scorer`, `least-ttft-picker`,
`least-request-picker`, `round-robin-picker` and `slow-start-filter`.
"""

_BY_LATENCY = "write `latency-scorer`, and a `predicted-latency-producer`"
DEPRECATED: dict[str, str] = {
    "model-server-protocol-metrics": "write `core-metrics-extractor`",
    "model-server-protocol-models": "write `models-data-extractor`",
    "tokenizer": "write `token-producer`",
    "pd-profile-handler": "write `disagg-profile-handler`",
    "disagg-headers-handler": "leave it out: `disagg-profile-handler` sets the headers",
    "prefill-header-handler": "leave it out: `disagg-profile-handler` sets the headers",
    "data-parallel-profile-handler": "leave it out if gateways reach the ports of all ranks",
    "precise-prefix-cache-scorer": "write `prefix-cache-scorer`, and a producer of its matches",
    "by-label": "write `label-selector-filter`, or the filter of the role",
    "by-label-selector": "write `label-selector-filter`",
    "kv-cache-scorer": "write `kv-cache-utilization-scorer`",
    "predicted-latency-scorer": _BY_LATENCY,
    "slo-aware-routing": _BY_LATENCY,
    "slo-scorer": _BY_LATENCY,
    "slo-request-tracker": "write `predicted-latency-producer`",
    "slo-aware-profile-handler": "write `header-profile-handler`",
    "eviction-sheddable-filter": "write `sheddable-eviction-filter`",
    "eviction-priority-then-time-ordering": "write `priority-then-time-eviction-order-policy`",
}
"""Types that llm-d-router has deprecated or removed, and what to write instead."""

REMOVED: dict[str, str] = {
    "low-queue-filter": "`utilization-filter`",
    "least-queue-filter": "`queue-scorer`",
    "least-kv-cache-filter": "`kv-cache-utilization-scorer`",
    "lora-affinity-filter": "`lora-affinity-scorer`",
    "decision-tree-filter": "scorers with weights",
}
"""Filters of GIE up to 0.5 that are not here, and what has taken their place."""

_EMPTY = without_effect("llm-d-router does not read the parameters of this type")
_CHECKED = frozenset(
    (
        *("least-ttft-scorer", "round-robin-picker"),
        *("outlen-bucket", "models-responder", "soft-reflective-ceiling-policy"),
    )
)
"""Types without parameters that refuse any; llm-d-router's other such types ignore them."""
_SIZES = without_effect("blocks and capacities are those that endpoints report")
_WHOLE = without_effect("prompts are matched whole")
_PREDICTED = without_effect("caches are predicted; `precise-prefix-cache-producer` follows events")
_WHEN_ASKED = without_effect("predictions are made when asked for")
_BY_FLEET = mapped_to("the fleet's own predictions, which count what is cached")
_ITS_PRODUCER = without_effect("a `predicted-latency-producer` has it")
_NO_CHOICE = without_effect("`latency-scorer` does without it")
_IGNORED = without_effect("llm-d-router before 0.9 does not read it, and later ones refuse it")
_FORMER: dict[str, dict[Effect, str]] = {
    "prefix-cache-scorer": {
        _SIZES: "autoTune blockSize blockSizeTokens lruCapacityPerServer hashBlockSize",
        _WHOLE: "maxPrefixBlocksToMatch maxPrefixTokensToMatch",
        _PREDICTED: "mode indexerConfig kvEventsConfig tokenProcessorConfig kvCacheRedisAddr",
    },
    "predicted-latency-scorer": {
        _BY_FLEET: "samplingMean maxSampledTokens streamingMode contextTTL endpointRoleLabel"
        " affinityGateTau affinityGateTauGlobal affinityMaxTTFTPenaltyMs",
        _ITS_PRODUCER: "sloBufferFactor",
        _NO_CHOICE: "negHeadroomTTFTWeight negHeadroomTPOTWeight selectionMode"
        " epsilonExploreSticky epsilonExploreNeg",
    },
    "predicted-latency-producer": {_WHEN_ASKED: "predictInPrepareData"},
    "disagg-profile-handler": {_IGNORED: "threshold hashBlockSize"},
    "pd-profile-handler": {_SIZES: "hashBlockSize", _IGNORED: "prefillThreshold"},
    "random-picker": {
        _IGNORED: "hashBlockSize maxEndpoints maxPrefixBlocksToMatch lruCapacityPerServer"
    },
}
_FORMER["slo-aware-routing"] = _FORMER["predicted-latency-scorer"]
"""By type, parameters of versions before 0.9, which read them, or ignored unknown ones."""


class PluginTypes(Mapping[str, type[Any]]):
    """Classes by type, imported when they are asked for."""

    def __getitem__(self, kind: str) -> type[Any]:
        found: type[Any] = resolve_name(PLACES[kind])
        return found

    def __contains__(self, kind: object) -> bool:
        return kind in PLACES

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)

    def type_of(self, plugin: object) -> str:
        """Return a plug-in's type, or the name of its class if no type is of that class."""
        kind = type(plugin)
        place = f"{kind.__module__}:{kind.__name__}"
        return next((name for name, each in PLACES.items() if each == place), kind.__name__)


PLUGINS = PluginTypes()
"""Every plug-in that a configuration may name."""


def unread(kind: str, written: Mapping[str, object]) -> dict[str, Effect]:
    """Return which of the parameters of a type are not read, and why."""
    if kind in PLUGINS and kind not in _CHECKED and not msgspec.structs.fields(PLUGINS[kind]):
        return dict.fromkeys(written, _EMPTY)
    former = _FORMER.get(kind, {}).items()
    return {each: why for why, names in former for each in names.split() if each in written}
