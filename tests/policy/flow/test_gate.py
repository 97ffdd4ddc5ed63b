"""llm-d-router's gate: bands send while the pool is below their ceilings, in strict order."""

import pytest

from epp.config.plugins import Plugins
from epp.config.schema import PluginSpec
from epp.errors import NoEndpoints, Overloaded
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.policy.flow.flow_control import Outcome
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.usage_limits import (
    PriorityHoldbackPolicy,
    StaticUsageLimitPolicy,
)
from tests.policy.flow.flow_rig import FlowRig

TWO_AT_ONCE = """
featureGates: [flowControl]
plugins:
- {type: least-ttft-picker}
- {type: concurrency-detector, parameters: {maxConcurrency: 2}}
- {type: priority-holdback-policy, parameters: {minCeiling: 0.5}}
schedulingProfiles: [{name: default, plugins: [{pluginRef: least-ttft-picker}]}]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
"""
HELD_BACK = f"{TWO_AT_ONCE}  usageLimitPolicyPluginRef: priority-holdback-policy\n"
BY_REPORTS = "featureGates: [flowControl]\nplugins: [{type: least-ttft-picker}]\n"


def gated(policy=TWO_AT_ONCE, *, pods=1, holds=False, **settings):
    """A rig whose requests wait for the pool alone."""
    return FlowRig(pods=pods, policy=policy, holds=holds, **settings)


def test_a_request_waits_while_the_pool_is_saturated():
    rig = gated()
    assert [rig.come(str(number), 10) for number in range(3)] == ["pod-0", "pod-0", None]
    assert rig.release() == []
    rig.wait(2)
    rig.end("0")
    assert rig.release() == ["2"]
    dispatched = [(name, waited) for name, what, waited in rig.outcomes if what == "Dispatched"]
    assert dispatched == [("0", 0.0), ("1", 0.0), ("2", 2.0)]


def test_a_request_waits_too_if_the_detector_is_a_filter_of_the_profile():
    # Without profiles, the default one has every plug-in, and a detector is a filter, too.
    profiles = "schedulingProfiles: [{name: default, plugins: [{pluginRef: least-ttft-picker}]}]\n"
    rig = gated(TWO_AT_ONCE.replace(profiles, ""), pods=2)
    went = [rig.come(str(number), 10) for number in range(6)]
    assert went[4:] == [None, None]
    assert rig.quoted == [str(number) for number in range(6)]  # each once
    assert sorted(map(str, went[:4])) == ["pod-0", "pod-0", "pod-1", "pod-1"]
    rig.wait(2)
    rig.end("0")
    assert rig.release() == ["4"]
    rig.wait(60)
    assert rig.release() == []
    assert ("5", "EvictedTTL", 62.0) in rig.outcomes


def test_a_decision_says_for_how_long_its_request_waited():
    rig = gated()
    asked = [rig.come(str(number), 10) for number in range(3)]
    assert asked[2] is None
    rig.wait(0.25)
    rig.end("0")
    released: list[tuple[HeldRequest, Outcome]] = []
    rig.flow.release(rig.now, released)
    ((_, decision),) = released
    assert isinstance(decision, Decision)
    assert decision.waited == 0.25


def test_what_is_sent_counts_at_once_and_no_more_go_than_may():
    rig = gated()
    for number in range(6):
        rig.come(str(number), 10)
    rig.end("0")
    assert rig.release() == ["2"]
    rig.end("1")
    rig.end("2")
    assert rig.release() == ["3", "4"]


def test_a_saturation_that_is_reported_counts_too():
    rig = gated(BY_REPORTS)
    rig.say("pod-0", running=40.0, kv_usage=0.81)
    assert rig.come("a", 10) is None
    rig.say("pod-0", running=20.0, kv_usage=0.5)
    assert rig.release() == ["a"]


def test_an_endpoint_without_room_keeps_a_request_although_the_pool_has_some():
    rig = gated(pods=1, holds=True)
    rig.come("long", 20_000)
    assert rig.come("next", 10) is None
    rig.begin("long")
    assert rig.release() == ["next"]


def test_low_priorities_are_held_back_before_high_ones():
    rig = gated(HELD_BACK)
    rig.come("0", 10)  # half of what the pool takes
    assert rig.come("low", 10, priority=-1) is None
    assert rig.come("1", 10) == "pod-0"
    assert rig.come("high", 10, priority=1) is None
    rig.end("1")
    assert rig.release() == ["high"]
    rig.end("high")
    rig.end("0")
    assert rig.release() == ["low"]


def test_a_band_that_is_closed_closes_all_below_it():
    rig = gated()
    for number in range(2):
        rig.come(str(number), 10)
    rig.come("low", 10, priority=-1)
    rig.come("high", 10, priority=5)
    rig.end("0")
    assert rig.release() == ["high"]
    rig.end("1")
    assert rig.release() == ["low"]


def test_a_request_of_negative_priority_waits_and_is_not_shed():
    rig = gated(BY_REPORTS)
    rig.say("pod-0", running=40.0, kv_usage=0.9)
    assert rig.come("batch", 10, priority=-1) is None


@pytest.mark.parametrize("holds", [True, False])
def test_one_that_waits_for_a_slot_of_its_adapter_goes_before_lower_priorities(holds):
    rig = gated(holds=holds)
    adapters = {"running_adapters": frozenset("a"), "waiting_adapters": frozenset("b")}
    rig.say("pod-0", max_adapters=1, **adapters)
    for number in range(2):
        rig.come(str(number), 100, target_model="a")
        rig.begin(str(number))
    assert rig.come("high", 100, target_model="b", priority=1) is None
    assert rig.come("low", 100, target_model="a") is None
    rig.wait(0.1)
    rig.say("pod-0", running=2.0, max_adapters=2, running_adapters=frozenset("a"))
    assert rig.release() == []  # the pool is saturated
    rig.end("0", 100)
    rig.wait(0.1)
    assert rig.release() == ["high"]


def test_time_to_live_refuses_with_429_and_what_is_left_goes_on():
    rig = gated()
    for number in range(4):
        rig.come(str(number), 10)
    rig.wait(59)
    assert rig.release() == []
    rig.end("0")
    assert rig.release() == ["2"]
    rig.wait(1)
    assert rig.release() == []
    error = rig.refused["3"]
    assert (error.status, error.reason) == (429, "ttl-expired")
    assert error.dropped_reason == "rejected-ttl-expired"
    assert error.waited == 60.0
    assert rig.outcomes[-1] == ("3", "EvictedTTL", 60.0)


def test_an_empty_pool_has_its_own_time_to_live_and_503():
    rig = gated(f"{TWO_AT_ONCE}  noEndpointRequestTTL: 5s\n", pods=0)
    assert rig.come("a", 10) is None
    rig.wait(5)
    rig.release()
    assert isinstance(rig.refused["a"], NoEndpoints)
    assert rig.refused["a"].dropped_reason == "rejected-no-endpoints"
    assert rig.outcomes == [("a", "EvictedNoEndpoints", 5.0)]


def test_time_begins_anew_when_the_pool_loses_its_last_endpoint_or_gets_one():
    rig = gated(f"{TWO_AT_ONCE}  noEndpointRequestTTL: 30s\n")
    for number in range(3):
        rig.come(str(number), 10)
    rig.wait(50)
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    rig.wait(29)  # 79 seconds in all
    assert rig.release() == []
    assert list(rig.held) == ["2"]
    rig.add("pod-9", "10.0.0.9")
    rig.say("pod-9")
    assert rig.release() == ["2"]


@pytest.mark.parametrize(
    ("pods", "changed", "lived", "reason"),
    [(1, "lost", 5, "no-endpoints"), (0, "got", 60, "ttl-expired")],
    ids=["lost", "got"],
)
def test_the_time_that_begins_anew_is_that_of_the_pool_as_it_is_now(pods, changed, lived, reason):
    ttl = 5 if changed == "lost" else 200
    rig = gated(f"{TWO_AT_ONCE}  noEndpointRequestTTL: {ttl}s\n", pods=pods)
    for number in range(3):
        rig.come(str(number), 10)
    rig.wait(10)
    if changed == "lost":
        rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    else:
        rig.add("pod-0", "10.0.0.1")
        rig.say("pod-0")
        assert rig.release() == ["0", "1"]
    rig.wait(lived - 1)
    rig.release()
    assert list(rig.held) == ["2"]
    rig.wait(1)
    rig.release()
    assert (rig.refused["2"].reason, rig.refused["2"].waited) == (reason, 10 + lived)


def test_a_pool_that_comes_and_goes_keeps_nobody_for_longer_than_may_be_waited():
    rig = gated(f"{TWO_AT_ONCE}  noEndpointRequestTTL: 100s\n", most_seconds=240.0)
    for number in range(3):
        rig.come(str(number), 10)
    for _ in range(4):
        rig.wait(50)
        rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
        rig.add("pod-0", "10.0.0.1")
        rig.say("pod-0", waiting=200.0)
        rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
        rig.release()
    assert list(rig.held) == ["2"]
    rig.wait(40)
    rig.release()
    assert rig.refused["2"].reason == "no-endpoints"


def test_no_more_wait_than_may_and_an_empty_pool_answers_503():
    rig = gated(f"{TWO_AT_ONCE}  maxRequests: 1\n")
    for number in range(3):
        rig.come(str(number), 10)
    with pytest.raises(Overloaded) as raised:
        rig.come("more", 10)
    assert (raised.value.reason, raised.value.dropped_reason) == ("line-full", "rejected-saturated")
    assert raised.value.waited == 0.0
    assert rig.outcomes[-1] == ("more", "RejectedCapacity", 0.0)
    empty = gated(f"{TWO_AT_ONCE}  maxRequests: 1\n", pods=0)
    empty.come("0", 10)
    with pytest.raises(NoEndpoints):
        empty.come("more", 10)
    assert empty.outcomes == [("more", "RejectedNoEndpoints", 0.0)]


def test_stages_are_measured_apart_and_the_busier_counts():
    rig = gated(BY_REPORTS, pods=0)
    rig.add("p", "10.0.0.1", labels={"llm-d.ai/role": "prefill"})
    rig.add("d", "10.0.0.2", labels={"llm-d.ai/role": "decode"})
    rig.say("p", kv_usage=0.2)
    rig.say("d", kv_usage=0.88)
    found = rig.flow.gate.measure(rig.now)
    assert found == pytest.approx({"prefill": 0.25, "decode": 1.1, "effective": 1.1})
    assert gated(BY_REPORTS, pods=0).flow.gate.measure(0.0) == {"effective": 1.0}


def test_what_must_go_goes_although_the_pool_is_saturated():
    rig = gated(f"{TWO_AT_ONCE}  defaultRequestTTL: 0s\n", most_seconds=10.0)
    for number in range(3):
        rig.come(str(number), 10)
    rig.wait(10)
    assert rig.release() == ["2"]


@pytest.mark.parametrize(
    ("policy", "ceilings"),
    [
        (StaticUsageLimitPolicy(threshold=0.7), [0.7, 0.7, 0.7]),
        (PriorityHoldbackPolicy(min_ceiling=0.4), [1.0, 0.7, 0.4]),
        (PriorityHoldbackPolicy(min_ceiling=0.4, domain="value"), [1.0, 0.46, 0.4]),
    ],
)
def test_ceilings(policy, ceilings):
    assert policy.ceilings(0.5, (90, 0, -10)) == pytest.approx(ceilings)


def test_an_only_band_has_the_highest_ceiling():
    policy = PriorityHoldbackPolicy(min_ceiling=0.2, max_ceiling=0.9)
    assert policy.ceilings(0.5, (0,)) == [0.9]


def test_soft_ceilings_sink_and_give_turns():
    name = "soft-reflective-ceiling-policy"
    policy = Plugins([PluginSpec(name)], lambda _: 0)[name]
    assert policy.ceilings(0.3, (2, 1, 0)) == [1.0, 1.0, 1.0]
    assert policy.ceilings(0.45, (2, 1, 0)) == [1.0, 1.0, 1.0]
    assert [policy.ceilings(1.0, (2, 1, 0)) for _ in range(5)] == [[1.0, 0.0, 0.0]] * 5
    opened = [policy.ceilings(0.8, (2, 1, 0))[2] for _ in range(12)]
    assert sum(opened) == 3.0  # once in 0.8 / 0.2 looks
    second = [sum(policy.ceilings(each, (2, 1, 0))[1] for _ in range(12)) for each in (0.6, 0.7)]
    assert second == [12.0, 6.0]  # below 1 - 0.6 / 2 always; not below 1 - 0.7 / 2, every other
    assert policy.ceilings(0.9, (0,)) == [1.0]
