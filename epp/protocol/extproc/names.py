"""Names of the ext_proc service, and of the headers and metadata that it reads and writes.

Names of headers and metadata follow the endpoint picker protocol (GIE proposal 004).
"""

from typing import Final

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD: Final = "Process"
DESTINATION: Final = "x-gateway-destination-endpoint"
SCORES: Final = "x-gateway-destination-endpoint-scores"
LB: Final = "envoy.lb"
SUBSET: Final = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
SERVED: Final = (LB, "x-gateway-destination-endpoint-served")

OBJECTIVE: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
REWRITE: Final = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
RANK: Final = "x-data-parallel-rank"
DECISION: Final = "x-warmpick-decision"
REASON: Final = "x-warmpick-reason"
DROPPED_REASON: Final = "x-llm-d-request-dropped-reason"
QUEUE_DURATION: Final = "x-llm-d-flow-queue-duration-ms"
ATTEMPTS: Final = "x-envoy-attempt-count"
"""How often Envoy tried, in responses, if `include_attempt_count_in_response` is set."""
LATER_NAMES: Final = {
    "x-prefiller-host-port": "x-llm-d-prefiller-host-port",
    "x-encoder-hosts-ports": "x-llm-d-encoder-hosts-ports",
    "x-kv-cache-source-host-port": "x-llm-d-kv-cache-source-host-port",
}
"""Headers for llm-d's sidecar, with their names in later versions; both are set."""

HEADERS_OF_CLIENTS: Final = (
    *OBJECTIVE,
    *FAIRNESS,
    *REWRITE,
    "x-llm-d-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-ttft-ms",
    "x-slo-tpot-ms",
    "x-llm-d-video-fps",
    "x-llm-d-video-duration-seconds",
    "x-llm-d-video-resolution",
)
"""Headers from clients to the picker only: gateways remove them behind the picker."""

HEADERS_OF_PICKER: Final = (
    DESTINATION,
    f"{DESTINATION}-subset",
    f"{DESTINATION}-served",
    *LATER_NAMES,
    *LATER_NAMES.values(),
    "x-data-parallel-host-port",
    RANK,
    DROPPED_REASON,
    DECISION,
    REASON,
    # Envoy reads it in clusters of type ORIGINAL_DST that do not name another header.
    "x-envoy-original-dst-host",
)
"""Headers that only the picker may set: gateways remove a client's own before the picker."""

CONTROL_HEADERS: Final = frozenset((*HEADERS_OF_CLIENTS, *HEADERS_OF_PICKER))
"""Headers that never reach the model server if a client sends them."""
