"""The metrics as a Prometheus server reads them: what each exchange and the pool counts as."""

import itertools
import math
from importlib.metadata import version

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.adapters.telemetry.cardinality import label
from epp.adapters.telemetry.histogram import Histogram
from epp.errors import MalformedRequest, NoEndpoints, Overloaded
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint, Load
from epp.model.request import RequestId
from epp.protocol.extproc.record import Outcome
from tests.adapters.telemetry_page import (
    A,
    B,
    read,
    record,
    request,
    samples,
    serve,
    telemetry,
    value,
    values,
)
from tests.records import record_of


def test_a_streamed_response():
    counted = telemetry()
    serve(counted, record())
    labels = {"model_name": "m", "target_model_name": "t", "fairness_id": "f", "priority": "3"}
    sums = {
        "llm_d_epp_request_duration_seconds": 2.5,
        "llm_d_epp_request_size_bytes": 500,
        "llm_d_epp_response_size_bytes": 9,
        "llm_d_epp_request_input_tokens": 100,
        "llm_d_epp_request_output_tokens": 11,
        "llm_d_epp_request_cached_tokens": 32,
        "llm_d_epp_request_ntpot_seconds": 2.5 / 11,
        "llm_d_epp_request_streaming_tpot_seconds": 0.2,
        "warmpick_predicted_cached_tokens": 48,
        "warmpick_actual_cached_tokens": 32,
    }
    for name, total in sums.items():
        assert value(counted, f"{name}_sum", **labels) == pytest.approx(total), name
        assert value(counted, f"{name}_count", **labels) == 1, name
    ttft = "llm_d_epp_request_ttft_seconds_sum"
    assert value(counted, ttft, streaming="true", **labels) == pytest.approx(0.5)
    error = "warmpick_cached_tokens_error_tokens_bucket"
    assert value(counted, error, le="1") == 0
    assert value(counted, error, le="16") == 1
    processing = "llm_d_epp_request_processing_duration_seconds"
    assert value(counted, f"{processing}_sum") == pytest.approx(0.003)
    assert value(counted, "llm_d_epp_scheduler_e2e_duration_seconds_sum") == 0.0003
    attempt = {"status": "success", "endpoint_name": "a", "namespace": "prod", "port": "8000"}
    assert value(counted, "llm_d_epp_scheduler_attempts_total", **attempt) == 1
    assert value(counted, "inference_extension_scheduler_attempts_total", pod_name="a") == 1
    assert value(counted, "warmpick_exchange_outcomes_total", outcome="completed") == 1


def test_a_follow_up_of_a_stored_response_is_not_compared_with_its_prediction():
    """Its server reports the prompt with all earlier turns, of which the picker knows nothing."""
    counted = telemetry()
    serve(counted, record(request=request(response_id="resp_1")))
    assert value(counted, "llm_d_epp_request_cached_tokens_sum") == 32
    for name in ("predicted_cached_tokens_sum", "actual_cached_tokens_sum", "reuse_tokens_total"):
        assert values(counted, f"warmpick_{name}") == {}


def test_a_response_that_is_not_streamed_has_no_time_per_token():
    counted = telemetry()
    serve(counted, record(streaming=False))
    ttft = "llm_d_epp_request_ttft_seconds_sum"
    assert value(counted, ttft, streaming="false") == pytest.approx(2.5)
    assert values(counted, "llm_d_epp_request_streaming_tpot_seconds_sum") == {}


@pytest.mark.parametrize("answer", [{"status": 503}, {"denied": True}])
def test_a_model_servers_error_counts_as_one(answer):
    counted = telemetry()
    serve(counted, record(usage=None, **answer))
    assert value(counted, "llm_d_epp_request_error_total", error_code="ModelServerError") == 1
    assert value(counted, "llm_d_epp_request_duration_seconds_count") == 1
    assert values(counted, "llm_d_epp_request_ttft_seconds_count") == {}


@pytest.mark.parametrize(
    ("error", "code", "failures"),
    [
        (NoEndpoints("none"), "ServiceUnavailable", 1),
        (Overloaded("full"), "ResourceExhausted", 0),
        (MalformedRequest("bad"), "BadRequest", 0),
    ],
)
def test_a_rejection(error, code, failures):
    counted = telemetry()
    nothing = {"decision": None, "decided_at": None, "first_byte_at": None, "usage": None}
    serve(counted, record(error=error, outcome=Outcome.REJECTED, status=None, **nothing))
    assert value(counted, "llm_d_epp_request_error_total", error_code=code) == 1
    attempts = values(counted, "llm_d_epp_scheduler_attempts_total")
    assert list(attempts.values()) == [1] * failures
    assert values(counted, "llm_d_epp_request_total") == {}
    assert values(counted, "llm_d_epp_request_duration_seconds_count") == {}
    assert value(counted, "warmpick_exchange_outcomes_total", outcome="rejected") == 1
    # As llm-d-router counts it: without the slowest, those that waited, a quantile is too low.
    assert value(counted, "llm_d_epp_request_processing_duration_seconds_sum") == 2.5


def test_picks_are_counted_by_pod_and_port():
    # WVA: `sum by (pod_name, port, namespace)`, which it joins with the pods of `vllm:*`.
    counted = telemetry()
    for index, port in enumerate((8000, 8001)):
        rank = Endpoint("prod", f"vllm-0-rank-{index}", "10.0.0.9", port, pod="vllm-0")
        serve(counted, record(index, decision=Decision(endpoints=(rank,))))
    for family, name in (("llm_d_epp", "endpoint_name"), ("inference_extension", "pod_name")):
        picked = [dict(pairs) for pairs in values(counted, f"{family}_scheduler_attempts_total")]
        places = {(each[name], each["port"]) for each in picked}
        assert places == {("vllm-0", "8000"), ("vllm-0", "8001")}


def test_a_request_that_could_not_be_read():
    counted = telemetry()
    error = MalformedRequest("no JSON")
    serve(counted, record_of(id=RequestId("1"), received_at=1.0, error=error))
    assert value(counted, "llm_d_epp_request_processing_duration_seconds_count") == 1
    labels = {"model_name": "", "fairness_id": "default-flow", "priority": "0"}
    assert value(counted, "llm_d_epp_request_error_total", **labels) == 1


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.UNOBSERVED])
def test_an_exchange_without_an_end_has_no_duration(outcome):
    counted = telemetry()
    serve(counted, record(outcome=outcome, usage=None))
    assert value(counted, "llm_d_epp_request_total") == 1
    assert values(counted, "llm_d_epp_request_duration_seconds_count") == {}
    assert value(counted, "llm_d_epp_request_running") == 0


def test_running_requests_rise_and_fall():
    counted = telemetry()
    serve(counted, record(9))  # from its first answer on the flow has series of its own
    for number in range(3):
        one = record(number)
        counted.scheduled(one.request, one.decision, 0.001)
    assert value(counted, "llm_d_epp_request_running") == 3
    assert value(counted, "inference_objective_running_requests", model_name="m") == 3
    counted.finished(record(0))
    counted.finished(record(1, outcome=Outcome.ABORTED))
    assert value(counted, "llm_d_epp_request_running") == 1


def test_unobserved_requests_run_as_long_as_the_fleet_models_them():
    there = {"0", "1"}
    counted = telemetry(under_way=there.__contains__)
    for number in range(3):
        serve(counted, record(number, outcome=Outcome.UNOBSERVED, usage=None))
    assert value(counted, "llm_d_epp_request_running") == 2
    assert value(counted, "llm_d_epp_request_ttft_seconds_count", streaming="true") == 3
    assert values(counted, "llm_d_epp_request_duration_seconds_count") == {}
    there.clear()
    assert value(counted, "llm_d_epp_request_running") == 0


def test_unobserved_requests_are_expired_without_a_scrape():
    looked_up: list[RequestId] = []

    def under_way(request):
        looked_up.append(request)
        return False

    counted = telemetry(under_way=under_way)
    for number in range(3_000):
        serve(counted, record(number, outcome=Outcome.UNOBSERVED, usage=None))
    looked_up.clear()
    assert value(counted, "llm_d_epp_request_running") == 0
    assert len(looked_up) <= 1_001


def test_a_prediction_counts_for_its_own_endpoint_only():
    counted = telemetry()
    serve(counted, record(1, served=B.target))
    assert values(counted, "warmpick_predicted_cached_tokens_count") == {}
    serve(counted, record(2, served=A.target))
    assert value(counted, "warmpick_predicted_cached_tokens_count") == 1
    assert value(counted, "llm_d_epp_request_cached_tokens_count") == 2


def test_deprecated_aliases_add_up_series_whose_labels_they_lack():
    counted = telemetry()
    for number, fairness in enumerate(("x", "y", "y")):
        serve(counted, record(number, request=request(number, fairness_id=fairness)))
    assert value(counted, "llm_d_epp_request_total", fairness_id="y") == 2
    assert value(counted, "inference_objective_request_total") == 3
    assert value(counted, "inference_objective_request_duration_seconds_count") == 3
    assert value(counted, "inference_objective_request_duration_seconds_sum") == 7.5


def test_the_pool():
    counted = telemetry()
    assert value(counted, "llm_d_epp_ready_endpoints", name="pool") == 2
    assert value(counted, "llm_d_epp_average_kv_cache_utilization") == 0.375
    assert value(counted, "inference_pool_average_queue_size", name="pool") == 3
    assert value(counted, "llm_d_epp_average_running_requests") == 15
    assert value(counted, "llm_d_epp_std_dev_queue_size") == pytest.approx(math.sqrt(2))
    assert value(counted, "llm_d_epp_per_endpoint_queue_size", model_server_endpoint="a") == 4
    assert value(counted, "inference_pool_per_pod_queue_size", model_server_pod="b") == 2
    indexer = {"plugin_name": "prefix-index", "plugin_type": "approx-prefix-cache-producer"}
    assert value(counted, "llm_d_epp_prefix_indexer_size", **indexer) == 77
    assert value(counted, "llm_d_epp_info", build_ref=version("warmpick")) == 1


def test_what_is_no_longer_shown_does_not_count_in_means():
    now = 100.0
    pool = [
        (A, Load(waiting=90, running=90, kv_usage=0.9, at=now - 60), True),
        (B, Load(waiting=2, running=20, kv_usage=0.25, at=now - 1), True),
    ]
    counted = telemetry(pool, fresh=lambda load: now - load.at <= 10)
    assert value(counted, "llm_d_epp_average_queue_size") == 2
    assert value(counted, "llm_d_epp_std_dev_queue_size") == 0
    assert value(counted, "llm_d_epp_average_kv_cache_utilization") == 0.25
    assert value(counted, "llm_d_epp_ready_endpoints") == 2
    assert value(counted, "llm_d_epp_per_endpoint_queue_size", model_server_endpoint="a") == 90
    counted = telemetry(pool, fresh=lambda _: False)
    assert values(counted, "llm_d_epp_average_queue_size") == {}


@pytest.mark.parametrize(
    ("what", "of_a", "of_b"),
    [
        ("trust", 0.75, 1.0),
        ("capacity_tokens", 1000, 1_000_000),
        ("used_tokens", 250, 0),
        ("blocks", 40, 0),
        ("events_live", 1, 0),
    ],
)
def test_gauges_of_modelled_caches(what, of_a, of_b):
    name, counted = f"warmpick_endpoint_cache_{what}", telemetry()
    assert value(counted, name, model_server_endpoint="a") == of_a
    assert value(counted, name, model_server_endpoint="b") == of_b


def test_counters_of_kv_events_and_text_fallbacks():
    counted = telemetry()
    assert value(counted, "warmpick_kv_event_batches_total", outcome="gaps") == 1
    assert value(counted, "warmpick_kv_event_batches_total", outcome="batches") == 9
    assert value(counted, "llm_d_epp_kv_cache_events_messages_received_total") == 429
    assert value(counted, "llm_d_epp_kv_cache_events_active_subscribers") == 1
    assert value(counted, "llm_d_epp_kv_cache_index_admissions_total") == 8
    assert value(counted, "llm_d_epp_kv_cache_index_evictions_total") == 5
    pod = {"pod_identifier": "prod/a"}
    assert value(counted, "llm_d_epp_kv_cache_events_subscriber_reconnections_total", **pod) == 5
    errors = "llm_d_epp_kv_cache_events_zmq_errors_total"
    assert value(counted, errors, operation="recv", **pod) == 2
    assert value(counted, errors, operation="connect", **pod) == 3
    assert value(counted, "warmpick_prompts_left_as_text_total", cause="media") == 4


def test_an_empty_pool():
    counted = telemetry(pool=[])
    assert value(counted, "llm_d_epp_ready_endpoints") == 0
    assert values(counted, "llm_d_epp_average_queue_size") == {}


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_labels_come_back_as_they_were(name):
    counted = telemetry()
    serve(counted, record(request=request(model=name)))
    (labels,) = samples(read(counted, buckets=False).values(), "llm_d_epp_request_total")
    assert dict(labels)["model_name"] in {name, "other"}
    assert not name.isprintable() or dict(labels)["model_name"] == name


@pytest.mark.parametrize("name", ["a\nb", "\ud800", "\x00"])
def test_a_name_that_is_no_name_is_other(name):
    counted = telemetry()
    serve(counted, record(request=request(model=name)))
    assert value(counted, "llm_d_epp_request_total", model_name="other") == 1


def test_a_long_name_is_cut_and_stays_one_of_its_own():
    names = ["x" * 64, "x" * 65, "x" * 66]
    assert label(names[0]) == names[0]
    labels = {label(name) for name in names}
    assert len(labels) == 3
    assert {len(each) for each in labels} == {64}


@given(st.lists(st.floats(-3, 12), min_size=1), st.lists(st.floats(-3, 12)))
def test_a_distribution_counts_like_a_histogram(some, more):
    one, other = Histogram((-1.0, 0.0, 2.5, 10.0)), Histogram((-1.0, 0.0, 2.5, 10.0))
    for number in some:
        one.observe(number)
    for number in more:
        other.observe(number)
    both = one + other
    expected = [sum(v <= end for v in some + more) for end in (*both.bounds, math.inf)]
    assert list(itertools.accumulate(both.counts)) == expected
    assert both.total == pytest.approx(math.fsum(some + more), abs=1e-9)
