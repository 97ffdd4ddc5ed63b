"""Facts: configurations that charts, guides and programs of others give llm-d-router."""

CHART_PLUGINS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters: {scheme: "http", path: "/metrics", insecureSkipVerify: true}
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""
SGLANG_PLUGINS = CHART_PLUGINS.replace(
    "core-metrics-extractor\n",
    "core-metrics-extractor\n  parameters: {defaultEngine: sglang}\n",
)
PAYLOAD_AGNOSTIC = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: passthrough-parser}
- {type: active-request-scorer}
- {type: session-affinity-scorer}
requestHandler: {parsers: [{pluginRef: passthrough-parser}]}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer, weight: 1}
  - {pluginRef: session-affinity-scorer, weight: 1}
"""
PREDICTED = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: predicted-latency-producer}
- name: strict-affinity-filter
  type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.99, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}
- name: loose-affinity-filter
  type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.80, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}
- {type: latency-scorer}
- {type: weighted-random-picker}
- {type: slo-headroom-tier-filter}
- {type: latency-slo-admitter}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: predicted-latency-producer}
  - {pluginRef: strict-affinity-filter}
  - {pluginRef: slo-headroom-tier-filter}
  - {pluginRef: loose-affinity-filter}
  - {pluginRef: latency-scorer}
  - {pluginRef: weighted-random-picker}
"""
OPTIMIZED_BASELINE = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: approx-prefix-cache-producer, parameters: {maxPrefixTokensToMatch: 40960}}
- {type: inflight-load-producer}
- {type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0.80}}
- {type: token-load-scorer}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-affinity-filter}, {pluginRef: token-load-scorer}]
"""
DISAGGREGATED = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: approx-prefix-cache-producer, parameters: {maxPrefixTokensToMatch: 131072}}
- {type: prefix-cache-affinity-filter, parameters: {peakPrefillThroughput: 33821}}
- {type: token-load-scorer}
- {type: active-request-scorer}
- {type: prefill-filter}
- {type: decode-filter}
- {type: always-disagg-pd-decider}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: prefix-cache-affinity-filter}
  - {pluginRef: token-load-scorer}
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]
"""
FLOW_CONTROL = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: round-robin-fairness-policy}
- {type: fcfs-ordering-policy}
- {type: concurrency-detector, parameters: {maxConcurrency: 132, concurrencyMode: requests}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
flowControl:
  maxBytes: 10Gi
  maxRequests: 1k
  defaultRequestTTL: 60s
  saturationDetector: {pluginRef: concurrency-detector}
  priorityBands:
  - {priority: 100, maxRequests: "500", fairnessPolicyRef: round-robin-fairness-policy}
  - {priority: 0, maxRequests: "200", orderingPolicyRef: fcfs-ordering-policy}
  - {priority: -10, maxRequests: "50"}
"""
KSERVE_PLUGINS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: single-profile-handler
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: no-hit-lru-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: no-hit-lru-scorer, weight: 2}
  - {pluginRef: max-score-picker}
"""
CONFORMANCE_PLUGINS = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: header-based-testing-filter}, {type: destination-endpoint-served-verifier}]
schedulingProfiles:
- name: conformance-profile
  plugins: [{pluginRef: header-based-testing-filter}]
"""
PRIME_RL_PLUGINS = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- name: file-disc
  type: file-discovery
  parameters: {path: $FILES/llmd/endpoints.yaml, watchFile: true}
- {name: vllmhttp-parser, type: vllmhttp-parser}
- {type: prefix-cache-scorer}
- {type: queue-scorer}
- {type: max-score-picker}
- {type: single-profile-handler}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: max-score-picker}
requestHandler: {parser: {pluginRef: vllmhttp-parser}}
dataLayer: {discovery: {pluginRef: file-disc}}
"""
ENDPOINTS = """
endpoints:
- {name: node-0-rank-0, namespace: slurm, address: 127.0.9.1, port: "8000", labels: {a: b}}
- {name: node-0-rank-1, namespace: slurm, address: 127.0.9.1, port: "8001"}
- {name: node-1-rank-0, namespace: slurm, address: 127.0.9.2, port: "8000"}
"""

IGNORE_PARAMETERS = (
    "queue-scorer",
    "multicluster-queue-scorer",
    "running-requests-size-scorer",
    "kv-cache-utilization-scorer",
    "multicluster-kv-cache-utilization-scorer",
    "lora-affinity-scorer",
    "decode-filter",
    "prefill-filter",
    "encode-filter",
    "header-based-testing-filter",
    "destination-endpoint-served-verifier",
    "single-profile-handler",
    "always-disagg-pd-decider",
    "always-disagg-multimodal-decider",
    "endpoint-notification-source",
    "dcgm-extractor",
    "openai-parser",
    "anthropic-parser",
    "vllmhttp-parser",
    "sglanghttp-parser",
    "vllmgrpc-parser",
    "vertexai-parser",
    "passthrough-parser",
    "global-strict-fairness-policy",
    "round-robin-fairness-policy",
    "fcfs-ordering-policy",
    "edf-ordering-policy",
    "slo-deadline-ordering-policy",
    "sheddable-eviction-filter",
    "priority-then-time-eviction-order-policy",
)
"""Types whose factories do not look at their parameters (in 0.10)."""

_OLD = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n"
_PD_PROFILES = """
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer, weight: 1}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer, weight: 1}]
"""
_PD_TYPES = "plugins: [{type: prefill-filter}, {type: decode-filter}, {type: queue-scorer}, "
FORMER = (
    (
        "pd-disaggregation, 0.2",
        f"""{_OLD}plugins:
- {{type: prefill-header-handler}}
- {{type: prefill-filter}}
- {{type: decode-filter}}
- {{type: max-score-picker}}
- {{type: queue-scorer, parameters: {{hashBlockSize: 5, maxPrefixBlocksToMatch: 256}}}}
- {{type: pd-profile-handler, parameters: {{threshold: 0, hashBlockSize: 5}}}}
{_PD_PROFILES}""",
        (
            "queue-scorer: `hashBlockSize`",
            "queue-scorer: `maxPrefixBlocksToMatch`",
            "pd-profile-handler: `hashBlockSize`",
            "pd-profile-handler: `threshold`",
        ),
    ),
    (
        "P/D without a decider, 0.2 to 0.5",
        f"{_OLD}{_PD_TYPES}{{type: pd-profile-handler}}]{_PD_PROFILES}",
        ("pd-profile-handler names no decider: prefill runs for every prompt, as before 0.6",),
    ),
    (
        "wide-ep-lws, 0.7",
        f"""{_OLD}plugins:
- {{type: prefill-filter, parameters: {{stageLabel: llm-d.ai/stage, stage: prefill}}}}
- {{type: decode-filter, parameters: {{selector: {{matchLabels: {{llm-d.ai/role: decode}}}}}}}}
- {{type: random-picker, parameters: {{maxNumOfEndpoints: 1, hashBlockSize: 5}}}}
- {{type: disagg-profile-handler, parameters: {{threshold: 0, hashBlockSize: 5}}}}
schedulingProfiles:
- {{name: prefill, plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: random-picker}}]}}
- {{name: decode, plugins: [{{pluginRef: decode-filter}}, {{pluginRef: random-picker}}]}}
""",
        (
            "prefill-filter: `stageLabel`",
            "decode-filter: `selector`",
            "random-picker: `hashBlockSize`",
            "disagg-profile-handler: `threshold`",
        ),
    ),
    (
        "precise-prefix-cache-aware, 0.2",
        f"""{_OLD}plugins:
- {{type: single-profile-handler}}
- {{type: decode-filter}}
- type: prefix-cache-scorer
  parameters:
    mode: cache_tracking
    kvEventsConfig: {{zmqEndpoint: "tcp://0.0.0.0:5557"}}
    indexerConfig:
      tokenProcessorConfig: {{blockSize: 64, hashSeed: "42"}}
      kvBlockIndexConfig: {{enableMetrics: true, metricsLoggingInterval: 60000000000}}
- {{type: kv-cache-scorer}}
- {{type: queue-scorer}}
- {{type: max-score-picker}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: decode-filter}}
  - {{pluginRef: prefix-cache-scorer, weight: 3.0}}
  - {{pluginRef: kv-cache-scorer, weight: 1.0}}
  - {{pluginRef: queue-scorer, weight: 1.0}}
  - {{pluginRef: max-score-picker}}
""",
        ("prefix-cache-scorer: `mode`", "prefix-cache-scorer: `indexerConfig`"),
    ),
    (
        "chart of GIE 1.3, predicted latency",
        f"""{_OLD}plugins:
- {{type: queue-scorer}}
- {{type: kv-cache-utilization-scorer}}
- {{type: prefix-cache-scorer}}
- type: predicted-latency-scorer
  parameters:
    samplingMean: 1000.0
    maxSampledTokens: 20
    sloBufferFactor: 1.0
    negHeadroomTTFTWeight: 0.8
    negHeadroomTPOTWeight: 0.2
    headroomTTFTWeight: 0.8
    headroomTPOTWeight: 0.2
    headroomSelectionStrategy: "least"
    compositeKVWeight: 1.0
    compositeQueueWeight: 1.0
    compositePrefixWeight: 1.0
    epsilonExploreSticky: 0.01
    epsilonExploreNeg: 0.01
    affinityGateTau: 0.80
    affinityGateTauGlobal: 0.99
    selectionMode: "linear"
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: predicted-latency-scorer}}]
featureGates: [prepareDataPlugins]
""",
        ("predicted-latency-scorer: `affinityGateTau`", "predicted-latency-scorer: `samplingMean`"),
    ),
    (
        "chart of GIE before 1.3, latencies by objectives",
        f"""{_OLD}plugins:
- {{type: queue-scorer}}
- {{type: kv-cache-utilization-scorer}}
- {{type: prefix-cache-scorer}}
- {{type: slo-aware-routing}}
- {{type: slo-aware-profile-handler}}
- {{type: max-score-picker}}
schedulingProfiles:
- name: prefix
  plugins: [{{pluginRef: prefix-cache-scorer}}]
- name: default
  plugins:
  - {{pluginRef: slo-aware-routing, weight: 0}}
  - {{pluginRef: queue-scorer}}
  - {{pluginRef: kv-cache-utilization-scorer}}
  - {{pluginRef: max-score-picker}}
- name: slo
  plugins: [{{pluginRef: slo-aware-routing}}, {{pluginRef: max-score-picker}}]
""",
        ("plugins[3].type: `slo-aware-routing`", "profile `prefix`"),
    ),
    (
        "llm-d's first guide to predicted latencies",
        f"""{_OLD}plugins:
- {{type: queue-scorer}}
- {{type: prefix-cache-scorer}}
- {{type: kv-cache-utilization-scorer}}
- {{type: slo-request-tracker}}
- {{type: slo-scorer}}
- {{type: slo-aware-profile-handler}}
- {{type: max-score-picker}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: slo-request-tracker}}
  - {{pluginRef: queue-scorer}}
  - {{pluginRef: kv-cache-utilization-scorer}}
  - {{pluginRef: max-score-picker}}
- name: slo
  plugins:
  - {{pluginRef: prefix-cache-scorer, weight: 0}}
  - {{pluginRef: slo-request-tracker}}
  - {{pluginRef: slo-scorer}}
  - {{pluginRef: max-score-picker}}
""",
        ("plugins[3].type: `slo-request-tracker`", "plugins[4].type: `slo-scorer`"),
    ),
    (
        "an index in Valkey, 0.9",
        """plugins:
- {type: token-producer}
- type: precise-prefix-cache-producer
  parameters:
    indexerConfig:
      kvBlockIndexConfig:
        valkeyConfig: {address: "valkey://valkey:6379", backendType: valkey, enableRDMA: false}
""",
        ("precise-prefix-cache-producer: `indexerConfig.kvBlockIndexConfig.valkeyConfig`",),
    ),
)
"""Files of older releases, by what they are for, and the beginnings of what is said about them."""
