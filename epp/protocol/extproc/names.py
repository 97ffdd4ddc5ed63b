"""Names of the ext_proc service, and of the headers and metadata that it reads and writes.

Names of headers and metadata follow the endpoint picker protocol (GIE proposal 004).
"""

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = "Process"
DESTINATION = "x-gateway-destination-endpoint"
SCORES = "x-gateway-destination-endpoint-scores"
LB = "envoy.lb"
SUBSET = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
SERVED = (LB, "x-gateway-destination-endpoint-served")

OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
REWRITE = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
RANK = "x-data-parallel-rank"
QUEUE_DURATION = "x-llm-d-flow-queue-duration-ms"
LATER_NAMES = {
    "x-prefiller-host-port": "x-llm-d-prefiller-host-port",
    "x-encoder-hosts-ports": "x-llm-d-encoder-hosts-ports",
    "x-kv-cache-source-host-port": "x-llm-d-kv-cache-source-host-port",
}
"""Headers for llm-d's sidecar, with their names in later versions; both are set."""

HEADERS_OF_CLIENTS = (
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

HEADERS_OF_PICKER = (
    DESTINATION,
    f"{DESTINATION}-subset",
    f"{DESTINATION}-served",
    *LATER_NAMES,
    *LATER_NAMES.values(),
    "x-data-parallel-host-port",
    RANK,
    "x-llm-d-request-dropped-reason",
    "x-warmpick-decision",
    "x-warmpick-reason",
    # Envoy reads it in clusters of type ORIGINAL_DST that do not name another header.
    "x-envoy-original-dst-host",
)
"""Headers that only the picker may set: gateways remove a client's own before the picker."""

CONTROL_HEADERS = frozenset((*HEADERS_OF_CLIENTS, *HEADERS_OF_PICKER))
"""Headers that never reach the model server if a client sends them."""
