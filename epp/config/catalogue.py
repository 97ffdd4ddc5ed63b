"""The catalogue of plug-in types: where the class of each is.

A class is imported when a file names its type, so that a start pays for no other.
"""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

_CLASSES: dict[str, dict[str, str]] = {
    "epp.policy.scorers.load": {
        "queue-scorer": "QueueScorer",
        "running-requests-size-scorer": "RunningRequestsScorer",
        "kv-cache-utilization-scorer": "KvCacheUtilizationScorer",
        "load-aware-scorer": "LoadAwareScorer",
        "token-load-scorer": "TokenLoadScorer",
        "least-ttft-scorer": "LeastTtftScorer",
    },
    "epp.config.scheduling_types": {
        "active-request-scorer": "ActiveRequestParameters",
        "precise-prefix-cache-scorer": "PrecisePrefixCacheScorer",
        "utilization-detector": "UtilizationDetectorParameters",
    },
    "epp.policy.scorers.caches": {
        "prefix-cache-scorer": "PrefixCacheScorer",
        "no-hit-lru-scorer": "NoHitLruScorer",
        "mm-embeddings-cache-scorer": "MultimodalCacheScorer",
        "lora-affinity-scorer": "LoraAffinityScorer",
        "multicluster-prefix-cache-scorer": "MulticlusterPrefixCacheScorer",
    },
    "epp.policy.scorers.latency": {
        "latency-scorer": "LatencyScorer",
    },
    "epp.policy.sessions": {
        "session-affinity-scorer": "SessionAffinityScorer",
        "session-affinity-filter": "SessionAffinityFilter",
        "multicluster-session-affinity-filter": "MulticlusterSessionAffinityFilter",
    },
    "epp.policy.scorers.labels": {
        "context-length-aware": "ContextLengthAware",
        "header-label-affinity-scorer": "HeaderLabelAffinityScorer",
        "topology-affinity-scorer": "TopologyAffinityScorer",
    },
    "epp.policy.scorers.attributes": {
        "endpoint-attribute-scorer": "EndpointAttributeScorer",
        "endpoint-attribute-weight-scorer": "EndpointAttributeWeightScorer",
        "multicluster-queue-scorer": "MulticlusterQueueScorer",
        "multicluster-kv-cache-utilization-scorer": "MulticlusterKvCacheUtilizationScorer",
    },
    "epp.policy.filters.labels": {
        "decode-filter": "DecodeFilter",
        "prefill-filter": "PrefillFilter",
        "encode-filter": "EncodeFilter",
        "label-selector-filter": "LabelSelectorFilter",
        "by-label": "ByLabelFilter",
        "by-label-selector": "LabelSelectorFilter",
        "topology-affinity-filter": "TopologyAffinityFilter",
    },
    "epp.policy.filters.caches": {
        "prefix-cache-affinity-filter": "PrefixCacheAffinityFilter",
        "slo-headroom-tier-filter": "SloHeadroomTierFilter",
    },
    "epp.policy.filters.load": {
        "utilization-filter": "UtilizationFilter",
        "endpoint-attribute-filter": "EndpointAttributeFilter",
    },
    "epp.policy.filters.slow_start": {
        "slow-start-filter": "SlowStartFilter",
    },
    "epp.policy.filters.detectors": {
        "concurrency-detector": "ConcurrencyDetector",
        "max-saturation-detector": "MaxSaturationDetector",
    },
    "epp.policy.conformance": {
        "header-based-testing-filter": "HeaderBasedTestingFilter",
        "destination-endpoint-served-verifier": "ServedVerifier",
    },
    "epp.policy.peers.aibrix": {
        "aibrix-prefix-cache-scorer": "AiBrixPrefixCacheScorer",
        "aibrix-vtc-basic-scorer": "AiBrixVtcBasicScorer",
    },
    "epp.policy.peers.d2lpm": {
        "d2lpm-scorer": "D2LpmScorer",
    },
    "epp.policy.peers.dualmap": {
        "dualmap-scorer": "DualMapScorer",
    },
    "epp.policy.peers.dynamo": {
        "dynamo-cost-scorer": "DynamoCostScorer",
    },
    "epp.policy.peers.kthena": {
        "kthena-least-request-scorer": "KthenaLeastRequestScorer",
        "kthena-least-latency-scorer": "KthenaLeastLatencyScorer",
        "kthena-prefix-cache-scorer": "KthenaPrefixCacheScorer",
    },
    "epp.policy.peers.kubeai": {
        "kubeai-chwbl-scorer": "KubeAiChwblScorer",
    },
    "epp.policy.peers.lmetric": {
        "lmetric-scorer": "LMetricScorer",
    },
    "epp.policy.peers.preble": {
        "preble-e2-scorer": "PrebleE2Scorer",
    },
    "epp.policy.peers.production_stack": {
        "production-stack-prefix-aware-scorer": "ProductionStackPrefixAwareScorer",
        "production-stack-load-aware-scorer": "ProductionStackLoadAwareScorer",
        "production-stack-session-scorer": "ProductionStackSessionScorer",
    },
    "epp.policy.peers.ray_serve": {
        "ray-prefix-affinity-scorer": "RayPrefixAffinityScorer",
    },
    "epp.policy.peers.sglang": {
        "sglang-cache-aware-scorer": "SglangCacheAwareScorer",
    },
    "epp.policy.peers.smg": {
        "smg-cache-aware-scorer": "SmgCacheAwareScorer",
        "smg-prefix-hash-scorer": "SmgPrefixHashScorer",
        "smg-least-load-scorer": "SmgLeastLoadScorer",
        "smg-power-of-two-picker": "SmgPowerOfTwoPicker",
    },
    "epp.policy.peers.vllm_router": {
        "vllm-cache-aware-scorer": "VllmCacheAwareScorer",
        "vllm-kv-aware-scorer": "VllmKvAwareScorer",
        "vllm-consistent-hash-scorer": "VllmConsistentHashScorer",
        "vllm-sticky-least-loaded-scorer": "VllmStickyLeastLoadedScorer",
    },
    "epp.policy.pickers": {
        "max-score-picker": "MaxScorePicker",
        "weighted-random-picker": "WeightedRandomPicker",
        "random-picker": "RandomPicker",
        "least-ttft-picker": "LeastTtftPicker",
        "least-request-picker": "LeastRequestPicker",
        "round-robin-picker": "RoundRobinPicker",
    },
    "epp.policy.profile": {
        "single-profile-handler": "SingleProfileHandler",
    },
    "epp.policy.disaggregation.handler": {
        "disagg-profile-handler": "DisaggProfileHandler",
        "pd-profile-handler": "PdProfileHandler",
        "disagg-headers-handler": "DisaggHeadersHandler",
        "prefill-header-handler": "DisaggHeadersHandler",
    },
    "epp.policy.handlers": {
        "header-profile-handler": "HeaderProfileHandler",
        "data-parallel-profile-handler": "DataParallelProfileHandler",
    },
    "epp.policy.disaggregation.deciders": {
        "always-disagg-pd-decider": "AlwaysDisaggPdDecider",
        "always-disagg-multimodal-decider": "AlwaysDisaggMultimodalDecider",
        "prefix-based-pd-decider": "PrefixBasedPdDecider",
    },
    "epp.policy.disaggregation.kv_source": {
        "p2p-source-producer": "P2pSourceProducer",
    },
    "epp.policy.disaggregation.rollout": {
        "disaggregatedset-rollout-screener": "DisaggregatedSetRolloutScreener",
    },
    "epp.config.producers": {
        "token-producer": "TokenProducer",
        "tokenizer": "TokenProducer",
        "approx-prefix-cache-producer": "ApproxProducer",
        "precise-prefix-cache-producer": "PreciseProducer",
        "multicluster-approx-prefix-cache-producer": "MulticlusterApproxProducer",
    },
    "epp.policy.dataproducers.mapped": {
        "burst-prefix-cache-producer": "BurstPrefixCacheProducer",
        "latency-observer-producer-hub": "LatencyObserverProducer",
        "latency-observation-scorer-hub": "LatencyObservationScorer",
        "session-state-producer": "SessionStateProducer",
        "k8s-peer-discovery": "PeerDiscovery",
    },
    "epp.policy.dataproducers.in_flight_load": {
        "inflight-load-producer": "InFlightLoadProducer",
    },
    "epp.policy.dataproducers.predicted_latency": {
        "predicted-latency-producer": "PredictedLatencyProducer",
    },
    "epp.policy.dataproducers.media_cache": {
        "mm-embeddings-cache-producer": "MediaCacheProducer",
    },
    "epp.policy.dataproducers.identity": {
        "session-id-producer": "SessionIdProducer",
        "agent-identity": "AgentIdentity",
        "outlen-bucket": "OutputLengthBucket",
    },
    "epp.policy.admitters": {
        "latency-slo-admitter": "LatencySloAdmitter",
        "probabilistic-admitter": "ProbabilisticAdmitter",
    },
    "epp.policy.reporter": {
        "request-attribute-reporter": "RequestAttributeReporter",
    },
    "epp.config.data_sources": {
        "file-discovery": "FileDiscoveryConfig",
        "multicluster-file-discovery": "MulticlusterFileDiscovery",
        "metrics-data-source": "MetricsDataSource",
        "multicluster-metrics-data-source": "MulticlusterMetricsDataSource",
        "models-data-source": "ModelsDataSource",
        "dcgm-data-source": "DcgmDataSource",
        "endpoint-notification-source": "EndpointNotificationSource",
        "k8s-notification-source": "K8sNotificationSource",
    },
    "epp.config.data_extractors": {
        "core-metrics-extractor": "CoreMetricsExtractor",
        "model-server-protocol-metrics": "CoreMetricsExtractor",
        "multicluster-metrics-extractor": "MulticlusterMetricsExtractor",
        "models-data-extractor": "ModelsExtractor",
        "dcgm-extractor": "DcgmExtractor",
    },
    "epp.policy.endpoint_facts": {
        "topology-extractor": "TopologyExtractor",
        "label-producer": "LabelProducer",
    },
    "epp.config.flow_control": {
        "global-strict-fairness-policy": "FairnessPolicy",
        "round-robin-fairness-policy": "FairnessPolicy",
        "program-aware-fairness": "ProgramAwareFairness",
        "fcfs-ordering-policy": "OrderingPolicy",
        "edf-ordering-policy": "OrderingPolicy",
        "slo-deadline-ordering-policy": "OrderingPolicy",
        "static-usage-limit-policy": "StaticUsageLimitPolicy",
        "priority-holdback-policy": "PriorityHoldbackPolicy",
        "soft-reflective-ceiling-policy": "UsageLimitPolicy",
        "sheddable-eviction-filter": "EvictionPolicy",
        "priority-then-time-eviction-order-policy": "EvictionPolicy",
    },
    "epp.config.parsers": {
        "openai-parser": "OpenAiParser",
        "anthropic-parser": "AnthropicParser",
        "vllmhttp-parser": "VllmHttpParser",
        "sglanghttp-parser": "SglangHttpParser",
        "vllmgrpc-parser": "VllmGrpcParser",
        "vertexai-parser": "VertexAiParser",
        "passthrough-parser": "PassthroughParser",
    },
}
"""Classes by the types that files name, by module.

The incumbent's plug-ins have its names, parameters and defaults; those of `epp.policy.peers` are
other routers' algorithms. Warmpick's own are `least-ttft-scorer`, `least-ttft-picker`,
`least-request-picker`, `round-robin-picker` and `slow-start-filter`.
"""

DEPRECATED: dict[str, str] = {
    "model-server-protocol-metrics": "write `core-metrics-extractor`",
    "tokenizer": "write `token-producer`",
    "pd-profile-handler": "write `disagg-profile-handler`",
    "disagg-headers-handler": "leave it out: `disagg-profile-handler` sets the headers",
    "prefill-header-handler": "leave it out: `disagg-profile-handler` sets the headers",
    "data-parallel-profile-handler": "leave it out where gateways reach the ports of all ranks",
    "precise-prefix-cache-scorer": "write `prefix-cache-scorer`, and a producer of its matches",
    "by-label": "write `label-selector-filter`, or the filter of the role",
    "by-label-selector": "write `label-selector-filter`",
}
"""Types that llm-d-router has deprecated or removed, and what to write instead."""


class PluginTypes(MutableMapping[str, type[Any]]):
    """Classes by type, imported when they are asked for."""

    def __init__(self) -> None:
        self._places = {
            kind: (module, name)
            for module, names in _CLASSES.items()
            for kind, name in names.items()
        }
        self._classes: dict[str, type[Any]] = {}

    def __getitem__(self, kind: str) -> type[Any]:
        if kind not in self._classes:
            module, name = self._places[kind]
            self._classes[kind] = getattr(import_module(module), name)
        return self._classes[kind]

    def __setitem__(self, kind: str, found: type[Any]) -> None:
        self._places[kind] = (found.__module__, found.__name__)
        self._classes[kind] = found

    def __delitem__(self, kind: str) -> None:
        del self._places[kind]
        self._classes.pop(kind, None)

    def __contains__(self, kind: object) -> bool:
        return kind in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def type_of(self, plugin: object) -> str:
        """Return a plug-in's type, or the name of its class where no type is of that class."""
        kind = type(plugin)
        place = kind.__module__, kind.__name__
        return next((name for name, each in self._places.items() if each == place), kind.__name__)


PLUGINS = PluginTypes()
"""Every plug-in that a configuration may name."""
