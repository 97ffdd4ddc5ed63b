"""Names, types, labels and buckets of the metrics, which dashboards rely on."""

import math

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import Load
from tests.adapters.telemetry_page import A, read, record, request, serve, telemetry

M = ("model_name", "target_model_name", "fairness_id", "priority")
MT = M[:2]
LATENCY = (
    ".005 .025 .05 .1 .2 .4 .6 .8 1 1.25 1.5 2 3 4 5 6 8 10 15 20 30 45 60 120 180 240 300 360 "
    "480 600 900 1200 1800 2700 3600"
)
TTFT = LATENCY[: LATENCY.index(" 180")]
SIZES = " ".join(str(64 * 2**n) for n in range(25))
RESPONSES = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32778 65536"
TOKENS = RESPONSES + " 131072 262144 524288 1048576"
OUTPUT = "1 8 16 32 64 128 256 512 1024 2048 4096 8192"
NTPOT = ".001 .002 .005 .01 .02 .05 .1 .2 .5 1 2 5 10"
STREAMED = ".0005 .00205 .005 .01 .02 .04 .06 .08 .1 .125 .15 .2 .3 .4 .5 .6 .8 1 2"
TPOT = (
    ".0005 .00205 .005 .01 .02 .04 .06 .08 .1 .125 .15 .2 .3 .4 .5 .6 .8 1 1.5 2 3 4.5 6 12 18 24 "
    "30 36 48 60 90 120 180 270 360"
)
SCHEDULER = ".0001 .0002 .0005 .001 .002 .005 .01 .02 .05 .1"
PROCESSING = ".0005 .001 .002 .005 .01 .015 .025 .04 .06 .1 .25 .5 1 2.5 5 10"
ERROR = "-65536 -16384 -4096 -1024 -256 -64 -16 -1 0 1 16 64 256 1024 4096 16384 65536"
LOOP = ".001 .005 .01 .025 .05 .1 .25 .5 1 2.5 5 10"
ITL = ".001 .005 .01 .02 .04 .06 .08 .1 .15 .2 .3 .5 .75 1 2"
RATIO = "0 .1 .2 .3 .4 .5 .6 .7 .8 .9 1"
BYTES = "0 16 32 64 128 256 512 1024 2048 4096 8192 16384 32768 65536"
OPEN = ".001 .005 .01 .05 .1 .5 1 5 10 30 60 120 300 600"
PLUGIN = ("plugin_name", "plugin_type")
SCREENER = ("plugin_type", "plugin_name")
POINT = ("extension_point", "plugin_type", "plugin_name")
REWRITE = ("model_rewrite_name", "model_name", "target_model")
STAGE = ("model_name", "decision_type")
IN_FLIGHT = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")
ATTEMPT = ("status", "target_model_name")
PLACE = ("namespace", "port")
ENDPOINT = ("name", "model_server_endpoint")
GATING = (*SCREENER, "mode", "revision")
SELECTED = (*SCREENER, "selector")
EXTRACT = ("source_type", "extractor_type")

ROWS = [
    ("llm_d_epp_request", "counter", M),
    ("llm_d_epp_request_error", "counter", (*M, "error_code")),
    ("llm_d_epp_request_duration_seconds", "histogram", M, LATENCY),
    ("llm_d_epp_request_size_bytes", "histogram", M, SIZES),
    ("llm_d_epp_response_size_bytes", "histogram", M, RESPONSES),
    ("llm_d_epp_request_input_tokens", "histogram", M, TOKENS),
    ("llm_d_epp_request_cached_tokens", "histogram", M, TOKENS),
    ("llm_d_epp_request_output_tokens", "histogram", M, OUTPUT),
    ("llm_d_epp_request_running", "gauge", M),
    ("llm_d_epp_request_ntpot_seconds", "histogram", M, NTPOT),
    ("llm_d_epp_request_ttft_seconds", "histogram", (*M, "streaming"), TTFT),
    ("llm_d_epp_request_streaming_tpot_seconds", "histogram", M, STREAMED),
    ("llm_d_epp_request_streaming_itl_seconds", "histogram", M, ITL),
    ("inference_objective_request_ttft_seconds", "histogram", MT, TTFT),
    ("inference_objective_request_tpot_seconds", "histogram", MT, STREAMED),
    ("llm_d_epp_prefix_indexer_hit_ratio", "histogram", PLUGIN, RATIO),
    ("inference_extension_prefix_indexer_hit_ratio", "histogram", (), RATIO),
    ("llm_d_epp_prefix_indexer_hit_bytes", "histogram", PLUGIN, BYTES),
    ("inference_extension_prefix_indexer_hit_bytes", "histogram", (), BYTES),
    ("llm_d_epp_prefix_prompt_tokens", "histogram", PLUGIN, TOKENS),
    ("llm_d_epp_prefix_predicted_cached_tokens", "histogram", PLUGIN, TOKENS),
    *(
        (f"{prefix}_index_{name}", "counter", ())
        for prefix in ("llm_d_epp_kv_cache", "kvcache")
        for name in (
            *("admissions", "evictions", "lookup_requests", "lookup_hits"),
            "max_pod_hit_count",
        )
    ),
    ("llm_d_epp_model_rewrite_decisions", "counter", REWRITE),
    ("inference_extension_model_rewrite_decisions", "counter", REWRITE),
    ("llm_d_epp_disagg_decision", "counter", (*PLUGIN, *STAGE)),
    ("llm_d_inference_scheduler_disagg_decision", "counter", STAGE),
    ("llm_d_epp_pd_decision", "counter", (*PLUGIN, *STAGE)),
    ("llm_d_inference_scheduler_pd_decision", "counter", STAGE),
    ("llm_d_epp_request_predicted_tpot_seconds", "histogram", (*PLUGIN, *MT), TPOT),
    ("inference_objective_request_predicted_tpot_seconds", "histogram", MT, TPOT),
    ("llm_d_epp_request_predicted_ttft_seconds", "histogram", (*PLUGIN, *MT), LATENCY),
    ("inference_objective_request_predicted_ttft_seconds", "histogram", MT, LATENCY),
    ("llm_d_epp_request_slo_violation", "counter", (*PLUGIN, *MT, "type")),
    ("inference_objective_request_slo_violation", "counter", (*MT, "type")),
    ("llm_d_epp_inflight_requests", "gauge", IN_FLIGHT),
    ("llm_d_epp_inflight_tokens", "gauge", IN_FLIGHT),
    ("llm_d_epp_plugin_duration_seconds", "histogram", POINT, SCHEDULER),
    ("inference_extension_plugin_duration_seconds", "histogram", POINT, SCHEDULER),
    ("llm_d_epp_encoder_cache_queries", "counter", (*SCREENER, "modality")),
    ("llm_d_epp_encoder_cache_hits", "counter", (*SCREENER, "pod", "modality")),
    ("llm_d_epp_encoder_cache_hit_ratio", "histogram", SCREENER, RATIO),
    ("llm_d_epp_extproc_streams_inflight", "gauge", ()),
    ("llm_d_epp_extproc_stream_duration_seconds", "histogram", (), OPEN),
    ("llm_d_epp_extproc_streams", "counter", ("code",)),
    ("llm_d_epp_datalayer_poll_errors", "counter", ("source_type",)),
    ("llm_d_inference_scheduler_datalayer_poll_errors", "counter", ("source_type",)),
    ("llm_d_epp_datalayer_extract_errors", "counter", EXTRACT),
    ("llm_d_inference_scheduler_datalayer_extract_errors", "counter", EXTRACT),
    ("llm_d_epp_average_kv_cache_utilization", "gauge", ("name",)),
    ("llm_d_epp_average_queue_size", "gauge", ("name",)),
    ("llm_d_epp_average_running_requests", "gauge", ("name",)),
    ("llm_d_epp_std_dev_kv_cache_utilization", "gauge", ("name",)),
    ("llm_d_epp_std_dev_queue_size", "gauge", ("name",)),
    ("llm_d_epp_std_dev_running_requests", "gauge", ("name",)),
    ("llm_d_epp_ready_endpoints", "gauge", ("name",)),
    ("llm_d_epp_per_endpoint_queue_size", "gauge", ENDPOINT),
    ("warmpick_kv_event_batches", "counter", ("model_server_endpoint", "outcome")),
    ("llm_d_epp_kv_cache_events_messages_received", "counter", ("pod_identifier",)),
    ("llm_d_epp_kv_cache_events_subscriber_reconnections", "counter", ("pod_identifier",)),
    ("llm_d_epp_kv_cache_events_zmq_errors", "counter", ("pod_identifier", "operation")),
    ("llm_d_epp_kv_cache_events_active_subscribers", "gauge", ()),
    ("llm_d_epp_kv_cache_events_pool_capacity", "gauge", ()),
    ("llm_d_epp_disaggregatedset_revision_gating_share", "gauge", GATING),
    ("llm_d_epp_disaggregatedset_strict_header_no_match", "counter", SELECTED),
    ("llm_d_epp_prefix_cache_affinity_filter_decisions", "counter", ("plugin_name", "outcome")),
    ("warmpick_prompts_left_as_text", "counter", ("cause",)),
    ("warmpick_endpoint_cache_trust", "gauge", ENDPOINT),
    ("warmpick_endpoint_cache_capacity_tokens", "gauge", ENDPOINT),
    ("warmpick_endpoint_cache_used_tokens", "gauge", ENDPOINT),
    ("warmpick_endpoint_cache_blocks", "gauge", ENDPOINT),
    ("warmpick_endpoint_cache_events_live", "gauge", ENDPOINT),
    ("llm_d_epp_scheduler_e2e_duration_seconds", "histogram", (), SCHEDULER),
    ("llm_d_epp_scheduler_attempts", "counter", (*ATTEMPT, "endpoint_name", *PLACE)),
    ("llm_d_epp_request_processing_duration_seconds", "histogram", (), PROCESSING),
    ("llm_d_epp_info", "gauge", ("commit", "build_ref")),
    ("llm_d_epp_prefix_indexer_size", "gauge", ("plugin_name", "plugin_type")),
    ("inference_objective_request", "counter", (*MT, "priority")),
    ("inference_objective_request_error", "counter", (*MT, "error_code")),
    ("inference_objective_request_duration_seconds", "histogram", MT, LATENCY),
    ("inference_objective_request_sizes", "histogram", MT, SIZES),
    ("inference_objective_response_sizes", "histogram", MT, RESPONSES),
    ("inference_objective_input_tokens", "histogram", MT, TOKENS),
    ("inference_objective_output_tokens", "histogram", MT, OUTPUT),
    ("inference_objective_prompt_cached_tokens", "histogram", MT, TOKENS),
    ("inference_objective_running_requests", "gauge", ("model_name",)),
    (
        "inference_objective_normalized_time_per_output_token_seconds",
        "histogram",
        MT,
        NTPOT,
    ),
    ("inference_pool_average_kv_cache_utilization", "gauge", ("name",)),
    ("inference_pool_average_queue_size", "gauge", ("name",)),
    ("inference_pool_average_running_requests", "gauge", ("name",)),
    ("inference_pool_ready_pods", "gauge", ("name",)),
    ("inference_pool_per_pod_queue_size", "gauge", ("name", "model_server_pod")),
    ("inference_extension_scheduler_e2e_duration_seconds", "histogram", (), SCHEDULER),
    ("inference_extension_scheduler_attempts", "counter", (*ATTEMPT, "pod_name", *PLACE)),
    ("inference_extension_info", "gauge", ("commit", "build_ref")),
    ("inference_extension_prefix_indexer_size", "gauge", ()),
    ("warmpick_reuse_tokens", "counter", (*M, "part")),
    ("warmpick_predicted_hits", "counter", ("adapter", "salted", "media", "result")),
    ("warmpick_predicted_cached_tokens", "histogram", M, TOKENS),
    ("warmpick_actual_cached_tokens", "histogram", M, TOKENS),
    ("warmpick_cached_tokens_error_tokens", "histogram", M, ERROR),
    ("warmpick_exchange_outcomes", "counter", ("outcome",)),
    ("warmpick_scrape_failures", "counter", ()),
    ("warmpick_event_loop_delay_seconds", "histogram", (), LOOP),
    ("warmpick_event_loop_held_seconds", "histogram", (), LOOP),
]
TABLE = [(*row, "")[:4] for row in ROWS]


@pytest.fixture(scope="module")
def busy():
    """Everything that can be counted, counted."""
    counted = telemetry()
    serve(counted, record(1))
    serve(counted, record(2, status=500))
    serve(counted, record(3, streaming=False))
    serve(counted, record(4, request=request(4, rewrite="r", headers={"x-slo-ttft-ms": "9"})))
    warm = Candidate(endpoint=A, load=Load(), matched_blocks=9, total_blocks=9)
    found = Decision(
        endpoints=(A,),
        prompt_tokens=144,
        predicted_for=warm,
        candidates=(warm,),
        considered=(warm,),
    )
    serve(counted, record(5, decision=found))
    counted.scheduled(
        request(9, stream=True), found, 0.001
    )  # the one that `telemetry` has under way
    counted.scrape_failed()
    return counted


@pytest.fixture(scope="module")
def families(busy):
    return read(busy)


@pytest.mark.parametrize(
    ("name", "kind", "labels", "bounds"), TABLE, ids=[str(row[0]) for row in TABLE]
)
def test_names_labels_and_buckets_are_the_references(families, name, kind, labels, bounds):
    family = families[name]
    assert family.type == kind
    assert family.documentation
    names = {label for sample in family.samples for label in sample.labels}
    assert names == {*labels, *(["le"] if bounds else [])}
    if bounds:
        ends = [float(s.labels["le"]) for s in family.samples if s.name == f"{name}_bucket"]
        expected = [*map(float, bounds.split()), math.inf]
        assert ends[: len(expected)] == expected
        assert set(ends) == set(expected)


def test_no_other_family_is_exposed(families):
    names = {name for name in families if not name.startswith("process_")}
    assert names == {row[0] for row in TABLE}


def test_the_process_is_measured(families):
    assert families["process_cpu_seconds"].samples[0].value > 0


def test_bounds_are_written_as_go_writes_them_in_each_format(busy):
    # client_golang: `le="1"` in text format, `le="1.0"` in OpenMetrics.
    plain, openmetrics = ("".join(busy.page(openmetrics=each)) for each in (False, True))
    first = (
        '{model_name="m",target_model_name="t",fairness_id="f",priority="3",streaming="true",le='
    )
    for page, one, other in ((plain, "1", "1.0"), (openmetrics, "1.0", "1")):
        assert f'llm_d_epp_request_ttft_seconds_bucket{first}"{one}"}} ' in page
        assert f'le="{other}"}}' not in page
        assert "llm_d_epp_request_input_tokens_bucket{" in page
        assert 'le="1.048576e+06"}' in page
        assert 'le="0.005"}' in page
        assert 'le="+Inf"}' in page


def test_the_openmetrics_page_is_valid(busy):
    page = "".join(busy.page(openmetrics=True))
    names = {family.name for family in read_openmetrics(page)}
    assert {row[0] for row in TABLE} <= names
