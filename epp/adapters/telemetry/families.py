"""The exported metrics: names, labels, help texts and buckets.

`llm_d_epp_*` and their deprecated aliases (`inference_objective_*`, `inference_pool_*`) are
llm-d-router's, unchanged (32778 is its own slip), so that its dashboards and alerts work;
`warmpick_*` are our own. llm-d-router no longer writes `inference_extension_*`.
"""

from epp.adapters.telemetry.series import alias_of, counter, gauge, histogram

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
PREDICTED_TPOT_BOUNDS = (
    *(0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.6, 0.8, 1, 1.5, 2, 3, 4.5, 6, 12, 18, 24, 30, 36, 48, 60, 90, 120, 180, 270, 360),
)
ITL_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2)
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
_PLUGIN = ("plugin_name", "plugin_type")
INDEX = ("prefix-index", "approx-prefix-cache-producer")
"""The name and the type that the index has in these."""
OF_TYPE = ("plugin_type", "plugin_name")
"""The same labels in the other order, which llm-d-router has in some families."""
_TIMED = ("extension_point", *OF_TYPE)
_STAGES = ("model_name", "decision_type")
_REWRITE = ("model_rewrite_name", "model_name", "target_model")
_EXTRACTOR = ("source_type", "extractor_type")
_IN_FLIGHT = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")


REQUESTS = counter(
    "llm_d_epp_request_total",
    "Requests for which an endpoint was picked.",
    *FLOW,
    alias=alias_of("inference_objective_request_total", *MODEL, "priority"),
)
ERRORS = counter(
    "llm_d_epp_request_error_total",
    "Requests that were rejected, or that the model server answered with an error.",
    *(*FLOW, "error_code"),
    alias=alias_of("inference_objective_request_error_total", *MODEL, "error_code"),
)
DURATION = histogram(
    "llm_d_epp_request_duration_seconds",
    "Seconds from a request's first bytes to its response's last.",
    *FLOW,
    alias=alias_of("inference_objective_request_duration_seconds", *MODEL),
)
REQUEST_SIZE = histogram(
    "llm_d_epp_request_size_bytes",
    "Size of request bodies in bytes.",
    *FLOW,
    alias=alias_of("inference_objective_request_sizes", *MODEL),
)
RESPONSE_SIZE = histogram(
    "llm_d_epp_response_size_bytes",
    "Size of response bodies in bytes.",
    *FLOW,
    alias=alias_of("inference_objective_response_sizes", *MODEL),
)
INPUT_TOKENS = histogram(
    "llm_d_epp_request_input_tokens",
    "Prompt tokens per request, as the model server reported them.",
    *FLOW,
    alias=alias_of("inference_objective_input_tokens", *MODEL),
)
OUTPUT_TOKENS = histogram(
    "llm_d_epp_request_output_tokens",
    "Generated tokens per request, as the model server reported them.",
    *FLOW,
    alias=alias_of("inference_objective_output_tokens", *MODEL),
)
CACHED_TOKENS = histogram(
    "llm_d_epp_request_cached_tokens",
    "Prompt tokens served from the cache, as the model server reported them.",
    *FLOW,
    alias=alias_of("inference_objective_prompt_cached_tokens", *MODEL),
)
RUNNING = gauge(
    "llm_d_epp_request_running",
    "Requests that are being served by a model server.",
    *FLOW,
    alias=alias_of("inference_objective_running_requests", "model_name"),
)
NTPOT = histogram(
    "llm_d_epp_request_ntpot_seconds",
    "Duration of a request over its number of generated tokens, in seconds.",
    *FLOW,
    alias=alias_of("inference_objective_normalized_time_per_output_token_seconds", *MODEL),
)
TTFT = histogram(
    "llm_d_epp_request_ttft_seconds",
    "Seconds from a request's first bytes to its response's first body bytes, or to its last"
    " ones if it is not streamed.",
    *(*FLOW, "streaming"),
    alias=alias_of("inference_objective_request_ttft_seconds", *MODEL),
)
TPOT = histogram(
    "llm_d_epp_request_streaming_tpot_seconds",
    "Seconds per generated token after the first, of streamed responses.",
    *FLOW,
    alias=alias_of("inference_objective_request_tpot_seconds", *MODEL),
)
ITL = histogram(
    "llm_d_epp_request_streaming_itl_seconds",
    "Seconds from one piece of a streamed response to the next: each response's mean, counted"
    " once for each piece.",
    *FLOW,
)
PREDICTED_CACHED = histogram(
    "warmpick_predicted_cached_tokens",
    "Cached prompt tokens predicted at the pick, if the model server reported them later.",
    *FLOW,
)
ACTUAL_CACHED = histogram(
    "warmpick_actual_cached_tokens",
    "Cached prompt tokens that the model server reported, of requests with a prediction.",
    *FLOW,
)
CACHED_ERROR = histogram(
    "warmpick_cached_tokens_error_tokens",
    "Predicted minus reported cached prompt tokens; le=0 without le=-1 was exact.",
    *FLOW,
)
REUSE = counter(
    "warmpick_reuse_tokens_total",
    "Tokens of prompts whose cached part was reported: all, available in some cache, captured"
    " by the pick, delivered by the engine.",
    *(*FLOW, "part"),
)

TEXT_INSTEAD = counter(
    "warmpick_prompts_left_as_text_total",
    "Prompts that should have been tokenized and were not, by cause.",
    "cause",
)
SCHEDULER_SECONDS = histogram(
    "llm_d_epp_scheduler_e2e_duration_seconds",
    "Seconds that picking an endpoint took.",
    alias=alias_of("inference_extension_scheduler_e2e_duration_seconds"),
)
SCHEDULER_ATTEMPTS = counter(
    "llm_d_epp_scheduler_attempts_total",
    "Attempts to pick an endpoint, by outcome and endpoint.",
    *("status", "target_model_name", "endpoint_name", "namespace", "port"),
    alias=alias_of(
        "inference_extension_scheduler_attempts_total",
        *("status", "target_model_name", "pod_name=endpoint_name", "namespace", "port"),
    ),
)
PROCESSING_SECONDS = histogram(
    "llm_d_epp_request_processing_duration_seconds",
    "Seconds from a request's first bytes to the pick, or to the picker's own error, with the wait"
    " for its body and for room.",
)
OUTCOMES = counter(
    "warmpick_exchange_outcomes_total", "Exchanges with the proxy, by how they ended.", "outcome"
)
SCRAPE_FAILURES = counter(
    "warmpick_scrape_failures_total",
    "Polls of an endpoint's metrics page that failed, and intervals in which it was late.",
)
LOOP_DELAY = histogram(
    "warmpick_event_loop_delay_seconds",
    "How late a timer of the event loop ran: what every request waits on top of its own work.",
)
LOOP_HELD = histogram(
    "warmpick_event_loop_held_seconds",
    "How late a timer ran because of the process itself, and not of the machine.",
)
INFO = gauge(
    "llm_d_epp_info",
    "The running build.",
    *("commit", "build_ref"),
    alias=alias_of("inference_extension_info", "commit", "build_ref"),
)
INDEX_SIZE = gauge(
    "llm_d_epp_prefix_indexer_size",
    "Blocks that the prefix index believes the endpoints to hold.",
    *_PLUGIN,
    alias=alias_of("inference_extension_prefix_indexer_size"),
)
HIT_RATIO = histogram(
    "llm_d_epp_prefix_indexer_hit_ratio",
    "Share of a prompt that was predicted to be cached at the endpoint that was picked.",
    *_PLUGIN,
    alias=alias_of("inference_extension_prefix_indexer_hit_ratio"),
)
HIT_BYTES = histogram(
    "llm_d_epp_prefix_indexer_hit_bytes",
    "Bytes of a prompt, four per token, that were predicted to be cached where it was sent.",
    *_PLUGIN,
    alias=alias_of("inference_extension_prefix_indexer_hit_bytes"),
)
REWRITES = counter(
    "llm_d_epp_model_rewrite_decisions_total",
    "Requests whose model an InferenceModelRewrite replaced.",
    *_REWRITE,
    alias=alias_of("inference_extension_model_rewrite_decisions_total", *_REWRITE),
)
STAGES = counter(
    "llm_d_epp_disagg_decision_total",
    "Disaggregated decisions, by the stages that ran.",
    *(*_PLUGIN, *_STAGES),
    alias=alias_of("llm_d_inference_scheduler_disagg_decision_total", *_STAGES),
)
PD_STAGES = counter(
    "llm_d_epp_pd_decision_total",
    "Decisions of a `pd-profile-handler`, by the stages that ran.",
    *(*_PLUGIN, *_STAGES),
    alias=alias_of("llm_d_inference_scheduler_pd_decision_total", *_STAGES),
)
PREDICTED_TTFT = histogram(
    "llm_d_epp_request_predicted_ttft_seconds",
    "Seconds that the first token was predicted to take, at the pick.",
    *(*_PLUGIN, *MODEL),
    alias=alias_of("inference_objective_request_predicted_ttft_seconds", *MODEL),
)
PREDICTED_TPOT = histogram(
    "llm_d_epp_request_predicted_tpot_seconds",
    "Seconds that each token of a streamed response was predicted to take, at the pick.",
    *(*_PLUGIN, *MODEL),
    alias=alias_of("inference_objective_request_predicted_tpot_seconds", *MODEL),
)
SLO_VIOLATIONS = counter(
    "llm_d_epp_request_slo_violation_total",
    "Responses that missed an objective that their request named, by objective.",
    *(*_PLUGIN, *MODEL, "type"),
    alias=alias_of("inference_objective_request_slo_violation_total", *MODEL, "type"),
)
IN_FLIGHT_REQUESTS = gauge(
    "llm_d_epp_inflight_requests",
    "Requests that were sent to an endpoint and have not ended.",
    *_IN_FLIGHT,
)
IN_FLIGHT_TOKENS = gauge(
    "llm_d_epp_inflight_tokens",
    "Uncached prompt tokens of requests in flight, until the first token of the response.",
    *_IN_FLIGHT,
)
PLUGIN_SECONDS = histogram(
    "llm_d_epp_plugin_duration_seconds",
    "Seconds that plug-ins took, measured in one decision in 64.",
    *_TIMED,
    alias=alias_of("inference_extension_plugin_duration_seconds", *_TIMED),
)
ENCODER_QUERIES = counter(
    "llm_d_epp_encoder_cache_queries_total",
    "Media of requests that were looked up among those that endpoints have encoded before.",
    *(*OF_TYPE, "modality"),
)
ENCODER_HITS = counter(
    "llm_d_epp_encoder_cache_hits_total",
    "Media of requests that an endpoint was expected to have encoded before, by endpoint.",
    *(*OF_TYPE, "pod", "modality"),
)
ENCODER_HIT_RATIO = histogram(
    "llm_d_epp_encoder_cache_hit_ratio",
    "The share of a request's media that an endpoint had encoded before, over all endpoints.",
    *OF_TYPE,
)
AFFINITY_DECISIONS = counter(
    "llm_d_epp_prefix_cache_affinity_filter_decisions_total",
    "How often `prefix-cache-affinity-filter`s ended how.",
    *("plugin_name", "outcome"),
)
STREAMS = gauge("llm_d_epp_extproc_streams_inflight", "ext_proc streams that are open.")
STREAM_SECONDS = histogram(
    "llm_d_epp_extproc_stream_duration_seconds", "Seconds that an ext_proc stream stays open."
)
STREAMS_ENDED = counter(
    "llm_d_epp_extproc_streams_total",
    "ext_proc streams that have ended, by gRPC status code.",
    "code",
)
POLL_ERRORS = counter(
    "llm_d_epp_datalayer_poll_errors_total",
    "Polls of endpoints that failed, by data source.",
    "source_type",
    alias=alias_of("llm_d_inference_scheduler_datalayer_poll_errors_total", "source_type"),
)
EXTRACT_ERRORS = counter(
    "llm_d_epp_datalayer_extract_errors_total",
    "Pages of endpoints without any known metric, by data source and extractor.",
    *_EXTRACTOR,
    alias=alias_of("llm_d_inference_scheduler_datalayer_extract_errors_total", *_EXTRACTOR),
)
