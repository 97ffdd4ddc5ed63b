"""What operators see of flow control: llm-d-router's series, and the headroom."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.adapters.telemetry.queue_metrics import QueueMetrics
from epp.app.flow import flow_metrics
from epp.app.flow.held_requests import HeldRequests
from epp.model.listeners import reraise
from epp.policy.flow.headroom import headroom
from epp.policy.flow.refusals import QueueOutcome
from epp.policy.producers.identity import AgentIdentity, fairness_source
from tests.policy.flow.flow_rig import CAPACITY, LONG, FlowRig
from tests.policy.flow.test_gate import BY_REPORTS, TWO_AT_ONCE
from tests.policy.flow.test_slots import with_three_slots
from tests.strategies import request

PREFIX = "llm_d_epp_flow_control_"
FORMER = "inference_extension_flow_control_"
CYCLE = ".0001 .0002 .0005 .001 .002 .005 .01 .02 .05 .1"


def page(rig, queues=None, cycles=(), *, buckets=True):
    """The samples of a page, by series, after cycles that took so many seconds."""
    held = HeldRequests(rig.flow, lambda: rig.now, lambda *_: None, reraise)
    for seconds in cycles:
        held.cycles.observe(seconds)
    blocks = flow_metrics.collect(rig.flow, held, queues or told(rig), rig.fleet, rig.now)
    lines = [line for block in blocks for line in block.lines().splitlines()]
    lines = lines if buckets else [line for line in lines if "_bucket{" not in line]
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def told(rig):
    """The metrics of all that a rig's requests came to."""
    queues = QueueMetrics("pool")
    for name, outcome, waited in rig.outcomes:
        queues.count(request(name, model="m"), QueueOutcome(outcome), waited)
    return queues


def labels(**more):
    named = {"fairness_id": "default-flow", "priority": "0", "inference_pool": "pool"}
    named |= {"model_name": "m", "target_model_name": "m", **more}
    return "{" + ",".join(f'{name}="{value}"' for name, value in named.items()) + "}"


def test_nothing_of_llm_d_routers_is_there_before_anything_waited():
    rig = FlowRig(pods=1)
    rig.come("a", 10)
    assert not [name for name in page(rig) if name.startswith(PREFIX)]


def test_an_autoscaler_finds_an_empty_queue_before_any_request():
    rig = FlowRig(pods=0, policy=TWO_AT_ONCE, holds=False)
    found = page(rig)
    nobody = labels(model_name="", target_model_name="")
    for family in (PREFIX, FORMER):
        assert found[f"{family}queue_size{nobody}"] == found[f"{family}queue_bytes{nobody}"] == 0
        assert found[f'{family}pool_saturation{{inference_pool="pool",stage="effective"}}'] == 1.0
    assert rig.come("a", 10, model="m") is None
    found = page(rig)
    assert found[f"{PREFIX}queue_size{labels()}"] == 1
    assert f"{PREFIX}queue_size{nobody}" not in found


@pytest.mark.parametrize("priority", [0, -1])
def test_the_default_priority_waits_for_nothing_before_any_request(priority):
    rig = FlowRig(pods=1)
    series = 'warmpick_flow_waiting_requests{priority="0"}'
    assert page(rig)[series] == page(rig)[series.replace("requests", "bytes")] == 0
    rig.come("first", 20_000)
    assert rig.come("next", 10, priority=priority) is None
    assert page(rig)[series] == (priority == 0)


def test_outcomes_waits_and_queues():
    rig = FlowRig(pods=1, policy=f"{TWO_AT_ONCE}  maxRequests: 4\n", holds=False)
    for number in range(5):
        rig.come(str(number), 10, model="m", size=50)
    rig.wait(2)
    rig.end("0")
    rig.release()
    found = page(rig)
    band = 'priority="0",inference_pool="pool"'
    assert found[f'{PREFIX}requests_total{{outcome="Dispatched",{band}}}'] == 3
    came = 'fairness_id="default-flow",priority="0",outcome="NotYetFinalized"'
    assert found[f"{PREFIX}request_enqueue_duration_seconds_count{{{came}}}"] == 5
    seconds = labels(outcome="Dispatched")
    assert found[f"{PREFIX}request_queue_duration_seconds_sum{seconds}"] == 2.0
    assert found[f"{PREFIX}request_queue_duration_seconds_count{seconds}"] == 3
    assert found[f"{PREFIX}queue_size{labels()}"] == 2
    assert found[f"{PREFIX}queue_bytes{labels()}"] == 100
    assert found[f"{PREFIX}capacity_utilization_requests{{{band}}}"] == 2 / 5000
    assert found[f"{PREFIX}capacity_utilization_bytes{{{band}}}"] == 100 / 1e9
    assert found[f'{PREFIX}global_capacity_utilization_requests{{inference_pool="pool"}}'] == 0.5
    assert f'{PREFIX}global_capacity_utilization_bytes{{inference_pool="pool"}}' not in found
    assert found[f'{PREFIX}pool_saturation{{inference_pool="pool",stage="effective"}}'] == 1.0
    detector = 'detector="concurrency-detector",stage="decode"'
    assert found[f"{PREFIX}detector_saturation{{{detector}}}"] == 1.0


def test_without_the_gate_what_enters_is_not_counted_as_what_arrives():
    # WVA takes the rate of this count for that of all requests, unless it is not there.
    rig = FlowRig(pods=1)
    rig.come("first", 20_000)
    assert rig.come("next", 10, model="m") is None
    found = page(rig)
    assert found[f"{PREFIX}queue_size{labels()}"] == 1
    assert not [name for name in found if "enqueue_duration" in name]


@pytest.mark.parametrize(
    ("family", "bounds"),
    [
        (
            "request_queue_duration_seconds",
            ".0001 .0005 .001 .005 .01 .025 .05 .1 .25 .5 1 2.5 5 10 30 60",
        ),
        ("request_enqueue_duration_seconds", CYCLE),
        ("dispatch_cycle_duration_seconds", CYCLE),
    ],
)
def test_buckets_are_llm_d_routers(family, bounds):
    rig = FlowRig(pods=1, policy=TWO_AT_ONCE, holds=False)
    rig.come("a", 10)
    series = "\n".join(page(rig, cycles=[0.003]))
    ends = re.findall(rf'{PREFIX}{family}_bucket{{.*le="([^"]+)"}}', series)
    assert [float(end) for end in ends] == [*map(float, bounds.split()), math.inf]


def test_cycles_are_counted_once_there_was_one():
    rig = FlowRig(pods=1)
    assert f"{PREFIX}dispatch_cycle_duration_seconds_count" not in page(rig)
    found = page(rig, cycles=[0.25, 0.5])
    assert found[f"{PREFIX}dispatch_cycle_duration_seconds_count"] == 2
    assert found[f"{PREFIX}dispatch_cycle_duration_seconds_sum"] == 0.75


def test_six_families_have_their_former_names_too():
    rig = FlowRig(pods=1, policy=TWO_AT_ONCE, holds=False)
    for number in range(3):
        rig.come(str(number), 10, model="m", size=50)
    found = page(rig, cycles=[0.003])
    former = {name: value for name, value in found.items() if name.startswith(FORMER)}
    assert {re.split("_bucket|_count|_sum|{", name[len(FORMER) :])[0] for name in former} == {
        "request_queue_duration_seconds",
        "request_enqueue_duration_seconds",
        "dispatch_cycle_duration_seconds",
        "queue_size",
        "queue_bytes",
        "pool_saturation",
    }
    for name, value in former.items():
        assert found[name.replace(FORMER, PREFIX)] == value


def test_endpoints_that_show_nothing_are_counted_beside_the_detector_that_reads_them():
    rig = FlowRig(pods=2, policy=BY_REPORTS)
    series = f'{PREFIX}stale_endpoints{{detector="utilization-detector"}}'
    assert page(rig)[series] == 0
    rig.add("never-read", "10.0.1.1")
    assert page(rig)[series] == 1
    rig.wait(11)
    rig.say("pod-0")
    assert page(rig)[series] == 2
    requests_only = FlowRig(pods=1, policy=TWO_AT_ONCE)
    assert f"{PREFIX}stale_endpoints" not in str(page(requests_only))


def test_endpoints_that_never_showed_a_page_are_stale_whatever_else_is_not_known():
    rig = FlowRig(pods=3)
    rig.add("never-read", "10.0.1.1")
    rig.say("pod-0", num_blocks=None)
    stale, unknown = (
        f'warmpick_flow_unaccounted_endpoints{{reason="{reason}"}}'
        for reason in ("stale", "no-block-count")
    )
    assert (page(rig)[stale], page(rig)[unknown]) == (1, 1)
    rig.wait(11)
    rig.say("pod-1")
    found = page(rig)
    assert found[stale] == 3
    assert unknown not in found


def test_endpoints_that_are_polled_seldom_are_not_stale_between_two_reports():
    rig = FlowRig(pods=1, policy=BY_REPORTS, stale_seconds=90.0)
    series = f'{PREFIX}stale_endpoints{{detector="utilization-detector"}}'
    rig.wait(89)
    assert page(rig)[series] == 0
    rig.wait(2)
    assert page(rig)[series] == 1


def test_a_queue_that_is_empty_again_says_0():
    rig = FlowRig(pods=1, policy=TWO_AT_ONCE, holds=False)
    rig.come("a", 10)
    assert page(rig)[f"{PREFIX}queue_size{labels()}"] == 0


SEVERAL = """
featureGates: [flowControl]
plugins:
- {type: least-ttft-picker}
- {type: utilization-detector, name: kv, parameters: {kvCacheUtilThreshold: 0.5}}
- {type: concurrency-detector, name: sent, parameters: {maxConcurrency: 4}}
- {type: max-saturation-detector, parameters: {detectors: [kv, sent], stages: {kv: [prefill]}}}
schedulingProfiles: [{name: default, plugins: [{pluginRef: least-ttft-picker}]}]
flowControl: {saturationDetector: {pluginRef: max-saturation-detector}}
"""


def test_each_of_several_detectors_is_shown():
    rig = FlowRig(pods=0, policy=SEVERAL)
    rig.add("p", "10.0.0.1", labels={"llm-d.ai/role": "prefill-decode"})
    rig.say("p", kv_usage=0.25)
    rig.come("a", 10)
    gate = rig.flow.gate
    assert gate is not None
    assert sorted(gate.detected(rig.now)) == [
        ("kv", "decode", pytest.approx(0.5, abs=0.01)),
        ("kv", "prefill", pytest.approx(0.5, abs=0.01)),
        ("sent", "decode", 0.25),
        ("sent", "prefill", 0.25),
    ]


def test_names_without_end_share_their_series():
    queues, rig = QueueMetrics("pool"), FlowRig(pods=1)
    for number in range(500):
        asked = request(str(number), fairness_id=f"f{number}", model=f"m{number}" * 99)
        queues.count(asked, QueueOutcome.EVICTED_TTL, 1.0)
    found = page(rig, queues)
    sizes = [name for name in found if name.startswith(f"{PREFIX}queue_size")]
    assert len(sizes) == 100
    rest = labels(fairness_id="other", model_name="other", target_model_name="other")
    counted = f"{PREFIX}request_queue_duration_seconds_count"
    assert found[counted + rest.replace("}", ',outcome="EvictedTTL"}')] == 400
    rig.come("first", 20_000)
    for number in range(200):
        for name in range(1 + (number == 150)):
            assert rig.come(f"{number}/{name}", 10, model=f"n{number}") is None
    waiting = {name: v for name, v in page(rig, queues).items() if f"{PREFIX}queue_size" in name}
    late = labels(model_name="n150")
    assert (len(waiting), sum(waiting.values())) == (101, 201)
    assert waiting[f"{PREFIX}queue_size{late}"] == 2


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 80), st.integers(0, 700)), max_size=8
    )
)
def test_no_count_goes_back_and_no_name_keeps_a_place_that_it_does_not_use(steps):
    queues, rig = QueueMetrics("pool"), FlowRig(pods=1, policy=TWO_AT_ONCE, holds=False)
    before: dict[str, float] = {}

    def ask(named):
        outcome = QueueOutcome.DISPATCHED if named % 2 else QueueOutcome.REJECTED_CAPACITY
        queues.count(request("1", fairness_id=f"f{named % 3}", model=f"m{named}"), outcome, 0.5)

    for first, names, seconds in steps:
        for named in range(first, first + names):
            ask(named)
        rig.come(f"{first} {rig.now}", 10, model=f"m{first}", fairness_id=f"f{first % 3}")
        rig.wait(seconds)
        found = page(rig, queues, buckets=False)
        counts = {name: times for name, times in found.items() if "_count{" in name}
        assert all(times >= before.get(name, 0) for name, times in counts.items())
        before = counts
        assert len([name for name in found if name.startswith(f"{PREFIX}queue_size")]) <= 100
    for _ in range(2):
        rig.wait(600)
        page(rig, queues)
    ask(999)
    late = labels(fairness_id="f0", model_name="m999", target_model_name="m")
    assert page(rig, queues)[f"{PREFIX}queue_size{late}"] == 0


def test_what_entered_stays_counted_when_some_of_a_clients_models_are_idle():
    queues, rig = QueueMetrics("pool"), FlowRig(pods=1, policy=TWO_AT_ONCE, holds=False)
    for number in range(100):
        queues.count(request("1", model=f"m{number}"), QueueOutcome.DISPATCHED, 0.5)
    queues.count(request("1", model="m0"), QueueOutcome.EVICTED_TTL, 0.5)
    page(rig, queues)
    queues.count(request("1", model="m0"), QueueOutcome.DISPATCHED, 0.5)
    rig.wait(600)
    found = page(rig, queues)
    for family, series in (("queue_size", 1), ("request_queue_duration_seconds_count", 2)):
        assert len([name for name in found if name.startswith(PREFIX + family)]) == series
    came = 'fairness_id="default-flow",priority="0",outcome="NotYetFinalized"'
    for times in (102, 103):
        name = f"{PREFIX}request_enqueue_duration_seconds_count{{{came}}}"
        assert page(rig, queues)[name] == times
        queues.count(request("1", model="m0"), QueueOutcome.DISPATCHED, 0.5)


def test_what_entered_is_forgotten_with_the_last_series_of_a_fairness_id():
    queues, rig = QueueMetrics("pool"), FlowRig(pods=1, policy=TWO_AT_ONCE, holds=False)
    for number in range(100):
        queues.count(request("1", fairness_id=f"f{number}"), QueueOutcome.DISPATCHED, 0.5)
    queues.count(request("1", fairness_id="f9"), QueueOutcome.REJECTED_CAPACITY, 0.0)
    entered = f"{PREFIX}request_enqueue_duration_seconds_count"
    rejected = f'{entered}{{fairness_id="f9",priority="0",outcome="RejectedCapacity"}}'
    assert page(rig, queues)[rejected] == 1
    rig.wait(600)
    assert entered not in str(page(rig, queues))


def test_what_is_used_of_an_endpoints_room_is_1_where_requests_wait():
    rig = FlowRig(pods=1)
    rig.say("pod-0", running=1.0, kv_usage=0.5)
    used = 'warmpick_flow_endpoint_used_ratio{endpoint="pod-0",axis="%s"}'
    before = page(rig)
    assert before[used % "prefill"] == 0
    assert before[used % "memory"] == pytest.approx(0.5, rel=0.01)
    assert used % "slots" not in before
    rig.come("first", LONG)
    assert rig.come("next", 10) is None
    assert page(rig)[used % "prefill"] >= 1


class TestHeadroom:
    def test_an_idle_pool_takes_what_its_prefill_and_memory_allow(self):
        rig = FlowRig(pods=2)
        left = headroom(rig.flow, rig.fleet, rig.now, batch=False)
        assert left.tokens == pytest.approx(2 * CAPACITY, rel=0.01)
        assert 2 < left.requests < 2 * CAPACITY / 1256
        batch = headroom(rig.flow, rig.fleet, rig.now, batch=True)
        assert 0 < batch.requests < left.requests
        assert batch.tokens == pytest.approx(2 * 0.7 * CAPACITY / 4, rel=0.01)

    def test_it_shrinks_with_what_runs_and_ends_when_there_is_no_room(self):
        rig = FlowRig(pods=1)
        before = headroom(rig.flow, rig.fleet, rig.now, batch=False)
        rig.come("a", 3000)
        rig.begin("a")
        after = headroom(rig.flow, rig.fleet, rig.now, batch=False)
        assert after.requests < before.requests
        assert after.tokens == pytest.approx(before.tokens - 3000 - 256, abs=20)
        rig.come("b", 20_000)
        assert headroom(rig.flow, rig.fleet, rig.now, batch=False) == (0, 0.0)

    @pytest.mark.parametrize(
        ("tokens", "prefills", "waiting", "capacity"),
        [(1000, 0, 0, CAPACITY), (1000, 2, 0, CAPACITY), (1000, 0, 3, CAPACITY), (100, 0, 0, 3000)],
        ids=["prefill", "stages", "requests of others", "memory"],
    )
    def test_what_it_says_can_be_sent(self, tokens, prefills, waiting, capacity):
        rig = FlowRig(pods=1, capacity=capacity)
        for number in range(prefills):
            rig.add(f"p-{number}", f"10.0.1.{number}", labels={"llm-d.ai/role": "prefill"})
            rig.say(f"p-{number}")
        rig.come("as usual", tokens)
        rig.begin("as usual")
        rig.say("pod-0", running=1.0, waiting=float(waiting), counted=True)
        left = headroom(rig.flow, rig.fleet, rig.now, batch=False).requests
        went = [rig.come(str(number), tokens) for number in range(left + 1)]
        assert left > 1
        assert went == ["pod-0"] * left + [None]

    def test_of_an_engine_whose_slots_are_known_it_is_the_free_ones(self):
        rig = with_three_slots()
        for name in ("5", "6", "7"):
            rig.end(name, 10, 10)
        rig.say("pod-0", running=1.0, counted=True)
        assert headroom(rig.flow, rig.fleet, rig.now, batch=False).requests == 2
        used = 'warmpick_flow_endpoint_used_ratio{endpoint="pod-0",axis="slots"}'
        assert page(rig)[used] == 1 / (3 + 1)  # one more may wait for the next

    def test_what_is_not_known_or_saturated_has_none(self):
        rig = FlowRig(pods=1)
        rig.say("pod-0", num_blocks=None)
        assert headroom(rig.flow, rig.fleet, rig.now, batch=False) == (0, 0.0)
        gated = FlowRig(pods=1, policy=BY_REPORTS)
        gated.say("pod-0", running=1.0, kv_usage=0.1)
        assert headroom(gated.flow, gated.fleet, gated.now, batch=True).requests > 0
        gated.say("pod-0", running=1.0, kv_usage=0.9)
        assert headroom(gated.flow, gated.fleet, gated.now, batch=True) == (0, 0.0)


@pytest.mark.parametrize(
    ("headers", "source"),
    [
        ({}, "default"),
        ({"x-llm-d-inference-fairness-id": "a"}, "x-llm-d-inference-fairness-id"),
        ({"x-gateway-inference-fairness-id": "a"}, "x-gateway-inference-fairness-id"),
        ({"session_id": "a", "x-user": "a"}, "session_id"),
        ({"x-mine": "a"}, "other"),
    ],
)
def test_where_a_flow_came_from(headers, source):
    named = headers.get("x-llm-d-inference-fairness-id") or headers.get(
        "x-gateway-inference-fairness-id"
    )
    asked = request("r", headers=headers, **({"fairness_id": named} if named else {}))
    agent = AgentIdentity(additional_session_headers=["x-mine"])
    assert fairness_source(agent.process_request(asked)) == source


async def test_requests_that_wait_are_counted_by_where_their_flow_came_from():
    rig = FlowRig(pods=1)
    rig.come("first", 20_000)
    held = HeldRequests(rig.flow, lambda: rig.now, lambda *_: None, reraise)
    rig.come("next", 10)
    held.hold(rig.held["next"])
    blocks = flow_metrics.collect(rig.flow, held, told(rig), rig.fleet, rig.now)
    text = "".join(block.lines() for block in blocks)
    assert 'warmpick_flow_waited_total{fairness_source="default"} 1.0' in text
    held.stop()
