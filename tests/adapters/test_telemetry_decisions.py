"""Metrics of decisions: what was predicted, which stages ran, what is under way."""

import pytest

from epp.adapters.telemetry.decisions import DecisionMetrics
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.app.plugin_timing import PluginTimes
from epp.config.file import load
from epp.model.decision import Decision
from epp.model.endpoint import Load
from epp.model.request import RequestId
from epp.policy.choice import Plan
from epp.policy.plugins import PickContext
from epp.policy.producers.predicted_latency import PredictedLatency
from epp.protocol.extproc.record import Outcome
from epp.values import replaced
from tests.adapters.telemetry_page import (
    DECIDED,
    A,
    B,
    read,
    record,
    request,
    telemetry,
    value,
    values,
)
from tests.strategies import candidate


def served(counted, number=1, decision=DECIDED, **fields):
    asked = request(number, **fields)
    counted.scheduled(asked, decision, 0.0001)
    counted.finished(record(number, request=asked, decision=decision))
    return counted


def test_predicted_hits_are_of_the_endpoint_that_was_picked():
    counted = served(telemetry())  # 48 of 96 tokens, at four bytes each
    assert value(counted, "llm_d_epp_prefix_indexer_hit_ratio_sum") == 0.5
    assert value(counted, "llm_d_epp_prefix_indexer_hit_bytes_sum") == 192
    served(counted, 2, replaced(DECIDED, prompt_tokens=0))
    assert value(counted, "llm_d_epp_prefix_indexer_hit_ratio_count") == 1


def test_a_precise_producers_tokens_are_counted_where_there_is_one():
    counted = served(served(telemetry()), 2)
    assert value(counted, "llm_d_epp_prefix_prompt_tokens_sum", plugin_name="precise") == 192
    assert value(counted, "llm_d_epp_prefix_predicted_cached_tokens_sum") == 96
    without = served(Telemetry(MetricSources("pool", list, list, int)))
    assert not [name for name in read(without) if name.startswith("llm_d_epp_prefix_p")]


@pytest.mark.parametrize("prefix", ["llm_d_epp_kv_cache", "kvcache"])
def test_a_look_up_counts_the_most_blocks_that_one_endpoint_has(prefix):
    # llm-d-router's pkg/kvcache: the longest chain of any pod, whichever is picked, in both.
    names = [f"{prefix}_index_{each}_total" for each in ("lookup_hits", "max_pod_hit_count")]
    lookups = f"{prefix}_index_lookup_requests_total"
    counted = telemetry()
    assert [value(counted, each) for each in (lookups, *names)] == [0, 0, 0]
    for number, blocks in enumerate([(3, 5, 0), (0, 0), (2, 2)]):
        considered = [candidate(f"p{at}", matched_blocks=each) for at, each in enumerate(blocks)]
        served(counted, number, replaced(DECIDED, considered=considered))
    served(counted, 9, replaced(DECIDED, prompt_tokens=0))  # nothing to look up
    assert [value(counted, each) for each in (lookups, *names)] == [3, 7, 7]
    without = served(Telemetry(MetricSources("pool", list, list, int)))
    assert not [name for name in read(without) if "_index_l" in name]


def test_the_gaps_of_a_stream_are_their_mean():
    counted = served(telemetry())  # five pieces from 0.5 s to 2.5 s: four gaps of half a second
    assert value(counted, "llm_d_epp_request_streaming_itl_seconds_count", priority="3") == 4
    assert value(counted, "llm_d_epp_request_streaming_itl_seconds_sum", priority="3") == 2.0
    name = "llm_d_epp_request_streaming_itl_seconds_bucket"
    assert [value(counted, name, le=end) for end in ("0.3", "0.5")] == [0, 4]


def test_many_equal_values_count_as_each():
    many, one = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    many.observe_many(1.5, 3)
    for _ in range(3):
        one.observe(1.5)
    assert (many.counts, many.total) == (one.counts, one.total)


def test_stages_are_counted_by_what_ran():
    counted = telemetry()
    kinds = ("decode-only", "prefill-decode", "encode-decode", "encode-prefill-decode")
    for number, kind in enumerate((*kinds, "prefill-decode", "")):
        served(counted, number, Decision(endpoints=(A,), disaggregation=kind))
    name, family = "llm_d_epp_disagg_decision_total", "llm_d_epp_disagg_decision"
    seen = {
        sample.labels["decision_type"]: sample.value
        for sample in read(counted)[family].samples
        if sample.name == name
    }
    assert seen == {
        "decode-only": 1,
        "prefill-decode": 2,
        "encode-decode": 1,
        "encode-prefill-decode": 1,
    }


def test_stages_are_counted_under_the_handlers_name_and_the_target_model():
    counted = served(served(telemetry()), 2, model="", target_model="")
    handler = {"plugin_name": "pd", "plugin_type": "pd-profile-handler"}
    for name in ("llm_d_epp_disagg_decision_total", "llm_d_epp_pd_decision_total"):
        for model in ("t", "unknown"):
            assert value(counted, name, model_name=model, **handler) == 1
    counted = Telemetry(
        MetricSources("pool", list, list, int, profile_handler=("h", "disagg-profile-handler"))
    )
    served(counted)
    assert value(counted, "llm_d_epp_disagg_decision_total", plugin_name="h") == 1
    assert "llm_d_epp_pd_decision" not in read(counted)


def test_a_streamed_response_has_a_predicted_time_per_token():
    latency = PredictedLatency(1.0)
    counted = Telemetry(MetricSources("pool", list, list, int, predicted_latency=("l", latency)))
    idle, busy = candidate("idle"), candidate("busy", load=Load(running=50, at=0))
    assert latency.seconds_per_token(busy) > latency.seconds_per_token(idle)
    for number, chosen in enumerate((idle, busy)):
        decision = Decision(endpoints=(chosen.endpoint,), candidates=(idle, busy))
        counted.scheduled(request(number, stream=True), decision, 0.0001)
        counted.scheduled(request(10 + number), decision, 0.0001)
    name = "llm_d_epp_request_predicted_tpot_seconds"
    assert value(counted, f"{name}_count", plugin_name="l", model_name="m") == 2
    both = latency.seconds_per_token(idle) + latency.seconds_per_token(busy)
    assert value(counted, f"{name}_sum", target_model_name="t") == pytest.approx(both)


def test_rewrites_are_counted_by_their_object():
    counted = served(telemetry(), rewrite="canary")
    name = "llm_d_epp_model_rewrite_decisions_total"
    labels = {"model_rewrite_name": "canary", "model_name": "m", "target_model": "t"}
    assert value(counted, name, **labels) == 1


def test_missed_objectives_are_counted_by_kind():
    # The first token came after 500 ms; ten more took 2 s, 200 ms each.
    kept = {"x-slo-ttft-ms": "500", "x-llm-d-slo-tpot-ms": "200"}
    missed = {"x-slo-ttft-ms": "499", "x-llm-d-slo-tpot-ms": "199", "x-slo-tpot-ms": "9000"}
    counted = telemetry()
    none = ({"x-slo-ttft-ms": text} for text in ("soon", "-1", "0", "nan"))
    for number, headers in enumerate((kept, missed, *none)):
        served(counted, number, headers=headers)
    name = "llm_d_epp_request_slo_violation_total"
    assert [value(counted, name, type=kind) for kind in ("ttft", "tpot")] == [1, 1]
    assert value(counted, "llm_d_epp_request_predicted_ttft_seconds_count") == 6


def test_requests_under_way_are_those_of_the_fleet_that_no_other_replica_counts():
    under_way = [(RequestId("1"), A, 0), (RequestId("2"), A, 70), (RequestId("3"), B, 5)]
    counted = Telemetry(
        MetricSources("pool", list, list, lambda: 0, in_flight=lambda: iter(under_way))
    )
    served(counted, 8)
    for number in (1, 2):
        counted.scheduled(request(number), DECIDED, 0.0001)
    place = {"endpoint_name": "a", "namespace": "prod", "priority": "3", "fairness_id": "f"}
    assert value(counted, "llm_d_epp_inflight_requests", **place) == 2
    assert value(counted, "llm_d_epp_inflight_tokens", **place) == 70
    (series,) = read(counted)["llm_d_epp_inflight_requests"].samples
    assert series.labels["endpoint_name"] == "a"


def test_series_of_clients_words_are_bounded():
    metrics = DecisionMetrics(
        lambda: (),
        latency=("latency", PredictedLatency(1.0)),
        handler=("pd", "pd-profile-handler"),
        is_adapter=lambda _: False,
    )
    decided = replaced(DECIDED, candidates=(candidate("a"),), endpoints=(candidate("a").endpoint,))
    for number in range(3000):
        model = f"m{number}"
        asked = request(number, model=model, target_model=model, rewrite="r", stream=True)
        metrics.decided(asked, decided)
    page = "".join(block.text(openmetrics=False) for block in metrics.collect(lambda _: None))
    for family in (
        "model_rewrite_decisions_total",
        "disagg_decision_total",
        "pd_decision_total",
        "request_predicted_ttft_seconds_count",
        "request_predicted_tpot_seconds_count",
    ):
        assert page.count(f"\nllm_d_epp_{family}{{") == 1001
    assert 'model_rewrite_name="r",model_name="other",target_model="other"} 2000' in page


def test_label_sets_that_are_idle_leave_their_places_to_others():
    now = [0.0]
    handler = ("h", "disagg-profile-handler")
    counted = Telemetry(
        MetricSources("pool", list, list, int, profile_handler=handler, clock=lambda: now[0])
    )
    decision = Decision(endpoints=(A,), disaggregation="decode-only")

    def stages():
        found = values(counted, "llm_d_epp_disagg_decision_total")
        return {dict(pairs)["model_name"]: times for pairs, times in found.items()}

    def ask(model, number=1):
        asked = request(number, model=model, target_model=model, rewrite="")
        counted.scheduled(asked, decision, 0.0001)
        counted.finished(record(number, request=asked, status=404, usage=None))

    for number in range(1_100):
        ask("real" if number == 9 else f"invented-{number}", number)
    ask("late")
    assert (stages()["other"], sum(stages().values())) == (101, 1_101)
    ask("real")
    now[0] = 600.0
    assert stages() == {"real": 2}
    ask("late")
    assert stages() == {"real": 2, "late": 1}
    for number in range(1_100):
        ask(f"invented-{number}", number)
    now[0] = 1_200.0
    found = stages()  # all but `real` were asked for once more since the last look
    assert ("real" in found, len(found)) == (False, 1_000)


def test_streams_are_counted_where_that_is_asked_for():
    counted = served(telemetry())
    counted.finished(record(2, outcome=Outcome.ABORTED, finished_at=100.25))
    assert value(counted, "llm_d_epp_extproc_streams_total", code="OK") == 1
    assert value(counted, "llm_d_epp_extproc_streams_total", code="Canceled") == 1
    assert value(counted, "llm_d_epp_extproc_stream_duration_seconds_sum") == 2.75
    assert value(counted, "llm_d_epp_extproc_streams_inflight") == 3
    plain = served(Telemetry(MetricSources("pool", list, list, lambda: 0)))
    assert not [name for name in read(plain) if "extproc" in name]


def test_plug_ins_are_timed_under_their_own_names():
    scheduling = load("""
plugins: [{type: header-based-testing-filter}, {type: queue-scorer, name: q}]
""").scheduling
    times = PluginTimes(scheduling.plugin_names)
    asked, context = [candidate("a"), candidate("b")], PickContext(lambda _: 0, 0)
    assert list(times.collect()) == []
    Plan(scheduling.profile).choose(request(), asked, context, times)
    family, _ = times.collect()
    text = family.text(openmetrics=False)
    for labels in (
        'extension_point="Filter",plugin_type="header-based-testing-filter"',
        'extension_point="Scorer",plugin_type="queue-scorer",plugin_name="q"',
        'extension_point="Picker",plugin_type="max-score-picker"',
    ):
        assert labels in text


def test_media_count_as_encoded_where_they_were_sent_before():
    counted = telemetry()  # one picture, sent to the same pod twice
    assert value(counted, "llm_d_epp_encoder_cache_queries_total", plugin_name="mm") == 2
    assert value(counted, "llm_d_epp_encoder_cache_hits_total", pod=A.id) == 1
    assert value(counted, "llm_d_epp_encoder_cache_hit_ratio_count") == 2
    assert value(counted, "llm_d_epp_encoder_cache_hit_ratio_sum") == 1


def test_how_the_affinity_filter_ended_is_counted():
    counted = telemetry()  # one endpoint alone, then two cold ones
    name = "llm_d_epp_prefix_cache_affinity_filter_decisions_total"
    assert value(counted, name, plugin_name="sticky", outcome="not_applicable") == 1
    assert value(counted, name, plugin_name="sticky", outcome="no_match") == 1
