"""The exported metrics: names, labels, help texts and buckets.

`llm_d_epp_*` and their deprecated aliases (`inference_objective_*`, `inference_pool_*`) are
llm-d-router's, unchanged (32778 is its own slip), so that its dashboards and alerts work;
`warmpick_*` are our own. What begins with `inference_extension_` it writes no more.
"""

from epp.adapters.telemetry.series import DeprecatedAlias, Family

LATENCY_BOUNDS = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20),
    *(30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600),
)
TTFT_BOUNDS = LATENCY_BOUNDS[:24]
REQUEST_SIZE_BOUNDS = tuple(2**power for power in range(6, 31))
RESPONSE_SIZE_BOUNDS = (
    *(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536),
)
PROMPT_TOKEN_BOUNDS = (*RESPONSE_SIZE_BOUNDS, 131072, 262144, 524288, 1048576)
OUTPUT_TOKEN_BOUNDS = RESPONSE_SIZE_BOUNDS[:12]
NTPOT_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TPOT_BOUNDS = (
    *(0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2),
    *(0.3, 0.4, 0.5, 0.6, 0.8, 1, 2),
)
ITL_BOUNDS = (*(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2),)
HIT_RATIO_BOUNDS = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
HIT_BYTES_BOUNDS = (0, *(2**power for power in range(4, 17)))
STREAM_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600)
SCHEDULER_BOUNDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
PROCESSING_BOUNDS = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10),
)
LOOP_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_MAGNITUDES = (1, 16, 64, 256, 1024, 4096, 16384, 65536)
CACHED_ERROR_BOUNDS = (*(-size for size in reversed(_MAGNITUDES)), 0, *_MAGNITUDES)

MODEL = ("model_name", "target_model_name")
FLOW = (*MODEL, "fairness_id", "priority")


def _objective(name: str, *labels: str) -> DeprecatedAlias:
    return DeprecatedAlias(f"inference_objective_{name}", tuple((label, label) for label in labels))


def _pool(name: str) -> DeprecatedAlias:
    return DeprecatedAlias(f"inference_pool_{name}", (("name", "name"),))


REQUESTS = Family(
    name="llm_d_epp_request_total",
    help="Requests for which an endpoint was picked.",
    kind="counter",
    labels=FLOW,
    alias=_objective("request_total", *MODEL, "priority"),
)
ERRORS = Family(
    name="llm_d_epp_request_error_total",
    help="Requests that were rejected, or that the model server answered with an error.",
    kind="counter",
    labels=(*FLOW, "error_code"),
    alias=_objective("request_error_total", *MODEL, "error_code"),
)
DURATION = Family(
    name="llm_d_epp_request_duration_seconds",
    help="Seconds from a request's first bytes to its response's last.",
    kind="histogram",
    labels=FLOW,
    alias=_objective("request_duration_seconds", *MODEL),
)
REQUEST_SIZE = Family(
    name="llm_d_epp_request_size_bytes",
    help="Size of request bodies in bytes.",
    kind="histogram",
    labels=FLOW,
    alias=_objective("request_sizes", *MODEL),
)
RESPONSE_SIZE = Family(
    name="llm_d_epp_response_size_bytes",
    help="Size of response bodies in bytes.",
    kind="histogram",
    labels=FLOW,
    alias=_objective("response_sizes", *MODEL),
)
INPUT_TOKENS = Family(
    name="llm_d_epp_request_input_tokens",
    help="Prompt tokens per request, as the model server reported them.",
    kind="histogram",
    labels=FLOW,
    alias=_objective("input_tokens", *MODEL),
)
OUTPUT_TOKENS = Family(
    name="llm_d_epp_request_output_tokens",
    help="Generated tokens per request, as the model server reported them.",
    kind="histogram",
    labels=FLOW,
    alias=_objective("output_tokens", *MODEL),
)
CACHED_TOKENS = Family(
    name="llm_d_epp_request_cached_tokens",
    help="Prompt tokens served from the cache, as the model server reported them.",
    kind="histogram",
    labels=FLOW,
    alias=_objective("prompt_cached_tokens", *MODEL),
)
RUNNING = Family(
    name="llm_d_epp_request_running",
    help="Requests that are being served by a model server.",
    kind="gauge",
    labels=FLOW,
    alias=_objective("running_requests", "model_name"),
)
NTPOT = Family(
    name="llm_d_epp_request_ntpot_seconds",
    help="Duration of a request over its number of generated tokens, in seconds.",
    kind="histogram",
    labels=FLOW,
    alias=_objective("normalized_time_per_output_token_seconds", *MODEL),
)
TTFT = Family(
    name="llm_d_epp_request_ttft_seconds",
    help="Seconds from a request's first bytes to its response's first body bytes, or to its "
    "last ones if it is not streamed.",
    kind="histogram",
    labels=(*FLOW, "streaming"),
    alias=_objective("request_ttft_seconds", *MODEL),
)
TPOT = Family(
    name="llm_d_epp_request_streaming_tpot_seconds",
    help="Seconds per generated token after the first, of streamed responses.",
    kind="histogram",
    labels=FLOW,
    alias=_objective("request_tpot_seconds", *MODEL),
)
ITL = Family(
    name="llm_d_epp_request_streaming_itl_seconds",
    help="Seconds from one piece of a streamed response to the next: each response's mean, counted"
    " once for each piece.",
    kind="histogram",
    labels=FLOW,
)
PREDICTED_CACHED = Family(
    name="warmpick_predicted_cached_tokens",
    help="Cached prompt tokens predicted at the pick, if the model server reported them later.",
    kind="histogram",
    labels=FLOW,
)
ACTUAL_CACHED = Family(
    name="warmpick_actual_cached_tokens",
    help="Cached prompt tokens that the model server reported, of the same requests.",
    kind="histogram",
    labels=FLOW,
)
CACHED_ERROR = Family(
    name="warmpick_cached_tokens_error_tokens",
    help="Predicted minus reported cached prompt tokens; le=0 without le=-1 was exact.",
    kind="histogram",
    labels=FLOW,
)
REUSE = Family(
    name="warmpick_reuse_tokens_total",
    help="Tokens of prompts whose cached part was reported: all, available in some cache, captured"
    " by the pick, delivered by the engine.",
    kind="counter",
    labels=(*FLOW, "part"),
)


def _cache_gauge(name: str, text: str) -> Family:
    labels = ("name", "model_server_endpoint")
    return Family(name=f"warmpick_endpoint_cache_{name}", help=text, kind="gauge", labels=labels)


CACHE_TRUST = _cache_gauge(
    "trust", "How far (0..1) recent predictions for an endpoint's cache held."
)
CACHE_CAPACITY = _cache_gauge("capacity_tokens", "Size of an endpoint's cache, as believed.")
CACHE_USED = _cache_gauge(
    "used_tokens", "Tokens of an endpoint's cache that requests in flight are believed to hold."
)
CACHE_BLOCKS = _cache_gauge("blocks", "Blocks that an endpoint's cache is believed to hold.")
CACHE_LIVE = _cache_gauge(
    "events_live", "Whether (0 or 1) an endpoint's own events correct what is believed of it."
)
TEXT_INSTEAD = Family(
    name="warmpick_prompts_left_as_text_total",
    help="Prompts that should have been tokenized and were not, by cause.",
    kind="counter",
    labels=("cause",),
)
SCHEDULER_SECONDS = Family(
    name="llm_d_epp_scheduler_e2e_duration_seconds",
    help="Seconds that picking an endpoint took.",
    kind="histogram",
    alias=DeprecatedAlias("inference_extension_scheduler_e2e_duration_seconds"),
)
SCHEDULER_ATTEMPTS = Family(
    name="llm_d_epp_scheduler_attempts_total",
    help="Attempts to pick an endpoint, by outcome and endpoint.",
    kind="counter",
    labels=("status", "target_model_name", "endpoint_name", "namespace", "port"),
    alias=DeprecatedAlias(
        "inference_extension_scheduler_attempts_total",
        (
            ("status", "status"),
            ("target_model_name", "target_model_name"),
            ("pod_name", "endpoint_name"),
            ("namespace", "namespace"),
            ("port", "port"),
        ),
    ),
)
PROCESSING_SECONDS = Family(
    name="llm_d_epp_request_processing_duration_seconds",
    help="Seconds from a request's first bytes to the pick, with the wait for its body.",
    kind="histogram",
)
OUTCOMES = Family(
    name="warmpick_exchange_outcomes_total",
    help="Exchanges with the proxy, by how they ended.",
    kind="counter",
    labels=("outcome",),
)
SCRAPE_FAILURES = Family(
    name="warmpick_scrape_failures_total",
    help="Polls of an endpoint's metrics page that failed, and intervals in which it was late.",
    kind="counter",
)
LOOP_DELAY = Family(
    name="warmpick_event_loop_delay_seconds",
    help="How late a timer of the event loop ran: what every request waits on top of its own work.",
    kind="histogram",
)
LOOP_HELD = Family(
    name="warmpick_event_loop_held_seconds",
    help="The part of that delay that the process itself caused, not the machine.",
    kind="histogram",
)
INFO = Family(
    name="llm_d_epp_info",
    help="The running build.",
    kind="gauge",
    labels=("commit", "build_ref"),
    alias=DeprecatedAlias(
        "inference_extension_info", (("commit", "commit"), ("build_ref", "build_ref"))
    ),
)
INDEX_SIZE = Family(
    name="llm_d_epp_prefix_indexer_size",
    help="Blocks that the prefix index believes the endpoints to hold.",
    kind="gauge",
    labels=("plugin_name", "plugin_type"),
    alias=DeprecatedAlias("inference_extension_prefix_indexer_size"),
)


_PLUGIN = ("plugin_name", "plugin_type")
HIT_RATIO = Family(
    name="llm_d_epp_prefix_indexer_hit_ratio",
    help="Share of a prompt that was predicted to be cached at the endpoint that was picked.",
    kind="histogram",
    labels=_PLUGIN,
    alias=DeprecatedAlias("inference_extension_prefix_indexer_hit_ratio"),
)
HIT_BYTES = Family(
    name="llm_d_epp_prefix_indexer_hit_bytes",
    help="Bytes of a prompt, four per token, that were predicted to be cached where it was sent.",
    kind="histogram",
    labels=_PLUGIN,
    alias=DeprecatedAlias("inference_extension_prefix_indexer_hit_bytes"),
)
REWRITES = Family(
    name="llm_d_epp_model_rewrite_decisions_total",
    help="Requests whose model an InferenceModelRewrite replaced.",
    kind="counter",
    labels=("model_rewrite_name", "model_name", "target_model"),
    alias=DeprecatedAlias(
        "inference_extension_model_rewrite_decisions_total",
        tuple((name, name) for name in ("model_rewrite_name", "model_name", "target_model")),
    ),
)
STAGES = Family(
    name="llm_d_epp_disagg_decision_total",
    help="Disaggregated decisions, by the stages that ran.",
    kind="counter",
    labels=(*_PLUGIN, "model_name", "decision_type"),
    alias=DeprecatedAlias(
        "llm_d_inference_scheduler_disagg_decision_total",
        (("model_name", "model_name"), ("decision_type", "decision_type")),
    ),
)
PREDICTED_TTFT = Family(
    name="llm_d_epp_request_predicted_ttft_seconds",
    help="Seconds that the first token was predicted to take, at the pick.",
    kind="histogram",
    labels=(*_PLUGIN, *MODEL),
    alias=_objective("request_predicted_ttft_seconds", *MODEL),
)
SLO_VIOLATIONS = Family(
    name="llm_d_epp_request_slo_violation_total",
    help="Responses that missed an objective that their request named, by objective.",
    kind="counter",
    labels=(*_PLUGIN, *MODEL, "type"),
    alias=_objective("request_slo_violation_total", *MODEL, "type"),
)
_IN_FLIGHT = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")
IN_FLIGHT_REQUESTS = Family(
    name="llm_d_epp_inflight_requests",
    help="Requests that were sent to an endpoint and have not ended.",
    kind="gauge",
    labels=_IN_FLIGHT,
)
IN_FLIGHT_TOKENS = Family(
    name="llm_d_epp_inflight_tokens",
    help="Uncached tokens of their prompts, until the first token of the response.",
    kind="gauge",
    labels=_IN_FLIGHT,
)
PLUGIN_SECONDS = Family(
    name="llm_d_epp_plugin_duration_seconds",
    help="Seconds that plug-ins took, measured in one decision in 64.",
    kind="histogram",
    labels=("extension_point", "plugin_type", "plugin_name"),
    alias=DeprecatedAlias(
        "inference_extension_plugin_duration_seconds",
        tuple((name, name) for name in ("extension_point", "plugin_type", "plugin_name")),
    ),
)
STREAMS = Family(
    name="llm_d_epp_extproc_streams_inflight",
    help="ext_proc streams that are open.",
    kind="gauge",
)
STREAM_SECONDS = Family(
    name="llm_d_epp_extproc_stream_duration_seconds",
    help="Seconds that an ext_proc stream stays open.",
    kind="histogram",
)
STREAMS_ENDED = Family(
    name="llm_d_epp_extproc_streams_total",
    help="ext_proc streams that have ended, by gRPC status code.",
    kind="counter",
    labels=("code",),
)
POLL_ERRORS = Family(
    name="llm_d_epp_datalayer_poll_errors_total",
    help="Polls of endpoints that failed, by data source.",
    kind="counter",
    labels=("source_type",),
    alias=DeprecatedAlias(
        "llm_d_inference_scheduler_datalayer_poll_errors_total", (("source_type", "source_type"),)
    ),
)


def _pool_gauge(name: str, text: str, alias: str = "") -> Family:
    return Family(
        name=f"llm_d_epp_{name}",
        help=text,
        kind="gauge",
        labels=("name",),
        alias=_pool(alias) if alias else None,
    )


AVERAGE_KV = _pool_gauge(
    "average_kv_cache_utilization",
    "Mean share (0..1) of KV cache in use.",
    "average_kv_cache_utilization",
)
AVERAGE_QUEUE = _pool_gauge(
    "average_queue_size", "Mean number of requests that wait in an endpoint.", "average_queue_size"
)
AVERAGE_RUNNING = _pool_gauge(
    "average_running_requests",
    "Mean number of requests that run in an endpoint.",
    "average_running_requests",
)
DEVIATION_KV = _pool_gauge(
    "std_dev_kv_cache_utilization", "Standard deviation of the share of KV cache in use."
)
DEVIATION_QUEUE = _pool_gauge(
    "std_dev_queue_size", "Standard deviation of the number of requests that wait."
)
DEVIATION_RUNNING = _pool_gauge(
    "std_dev_running_requests", "Standard deviation of the number of requests that run."
)
READY = _pool_gauge("ready_endpoints", "Endpoints that can be picked.", "ready_pods")
ENDPOINT_QUEUE = Family(
    name="llm_d_epp_per_endpoint_queue_size",
    help="Requests that wait in an endpoint.",
    kind="gauge",
    labels=("name", "model_server_endpoint"),
    alias=DeprecatedAlias(
        "inference_pool_per_pod_queue_size",
        (("name", "name"), ("model_server_pod", "model_server_endpoint")),
    ),
)
