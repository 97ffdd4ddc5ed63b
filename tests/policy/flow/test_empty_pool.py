"""A pool, or a stage of it, without endpoints: who waits for the first, and who is refused."""

from collections import Counter
from math import inf

import pytest

from epp.errors import NoEndpoints
from epp.model.endpoint import EndpointId
from epp.model.events import AttributesReported, EndpointRemoved, ScrapeFailed, ScrapeFailure
from epp.model.request_events import Failure
from tests.policy.flow.flow_rig import LONG, FlowRig


def test_an_empty_pool_holds_if_asked_to_and_serves_its_first_pod_one_by_one():
    with pytest.raises(NoEndpoints):
        FlowRig(pods=0).come("1", 10)
    rig = FlowRig(pods=0, empty_seconds=30.0)
    for number in range(3):
        assert rig.come(str(number), LONG + number) is None
    rig.wait(20)
    assert rig.release() == []
    rig.add("pod-0", "10.0.0.1")
    rig.say("pod-0")
    assert rig.release() == ["0"]
    rig.wait(10)
    rig.begin("0")
    assert rig.release() == ["1"]


def test_a_first_pod_that_has_not_reported_yet_gets_them_one_by_one_for_a_while():
    rig = FlowRig(pods=0, empty_seconds=30.0)
    for number in range(4):
        rig.come(str(number), LONG + number)
    rig.add("pod-0", "10.0.0.1")
    assert rig.release() == ["0"]
    assert rig.come("new", LONG + 9) is None
    rig.begin("0")
    assert rig.release() == ["1"]
    rig.wait(6)  # its metrics page says nothing
    assert rig.release() == ["2", "3", "new"]


def test_nothing_waits_for_an_endpoint_that_has_never_answered():
    rig = FlowRig(pods=0)
    rig.add("pod-0", "10.0.0.1")
    assert [rig.come(name, LONG) for name in ("first", "next")] == ["pod-0", None]
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.REFUSED))
    assert rig.release() == ["next"]


def test_an_empty_pool_waits_for_both_stages():
    rig = FlowRig(pods=0, empty_seconds=30.0)
    rig.come("1", 10)
    rig.wait(20)
    rig.add("p", "10.0.0.1", labels={"llm-d.ai/role": "prefill"})
    rig.say("p")
    assert rig.release() == []
    assert rig.come("2", 10) is None
    rig.wait(9)
    rig.add("d", "10.0.0.2", labels={"llm-d.ai/role": "decode"})
    rig.say("d")
    assert rig.release() == ["1", "2"]


@pytest.mark.parametrize("leaves", [False, True])
def test_a_stage_that_does_not_come_refuses_with_503(leaves):
    rig = with_prefill_alone(empty_seconds=30.0)
    if leaves:
        rig.add("d", "10.0.0.2", labels={"llm-d.ai/role": "decode"})
        rig.say("d")
        assert rig.come("before", LONG) == "d"
    assert rig.come("1", 10) is None
    if leaves:
        rig.apply(EndpointRemoved(EndpointId("default/d")))
    rig.wait(30)
    assert rig.release() == []
    assert (rig.refused["1"].status, rig.refused["1"].reason) == (503, "no-endpoints")
    with pytest.raises(NoEndpoints, match="role is prefill"):
        with_prefill_alone().come("2", 10)


def with_prefill_alone(**settings):
    rig = FlowRig(pods=0, **settings)
    rig.add("p", "10.0.0.1", labels={"llm-d.ai/role": "prefill"})
    rig.say("p")
    return rig


PREFILL = """
plugins: [{type: prefill-filter}, {type: least-ttft-picker}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: prefill-filter}, {pluginRef: least-ttft-picker}]}
"""


def test_where_requests_are_for_one_stage_its_endpoints_are_all_that_is_waited_for():
    rig = with_prefill_alone(policy=PREFILL, most_seconds=5.0, empty_seconds=2.0)
    rig.come("first", LONG)
    assert rig.come("next", 10) is None
    rig.say("p", running=9.0, kv_usage=1.0)
    rig.wait(4)
    assert rig.release() == []
    rig.wait(1)
    assert rig.release() == ["next"]


def test_of_an_endpoint_that_never_reports_it_is_not_learned_anew_that_it_may():
    rig = FlowRig(pods=0, empty_seconds=30.0)
    rig.add("pod-0", "10.0.0.1")
    rig.come("first", LONG)
    for second in range(20):
        rig.apply(AttributesReported(EndpointId("default/pod-0"), {"gpu": float(second)}))
        rig.come(str(second), LONG)
        rig.wait(1)
    rig.release()
    assert not rig.held


@pytest.mark.parametrize("most", [240.0, 20.0])
def test_an_empty_pool_that_stays_empty_refuses_with_503(most):
    rig = FlowRig(pods=0, empty_seconds=30.0, most_seconds=most)
    rig.come("1", 10)
    rig.wait(29)
    assert rig.release() == []
    assert list(rig.held) == ["1"]
    rig.wait(1)
    assert rig.release() == []
    assert (rig.refused["1"].status, rig.refused["1"].reason) == (503, "no-endpoints")


@pytest.mark.parametrize("empty_seconds", [0.0, 30.0, 400.0, inf])
def test_one_that_waits_as_the_last_endpoint_goes_waits_on_to_its_own_bound(empty_seconds):
    rig = FlowRig(pods=1, empty_seconds=empty_seconds, most_seconds=240.0)
    rig.fill()
    rig.come("next", 10)
    rig.wait(200)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    assert rig.release() == []
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    rig.wait(39)
    assert rig.release() == []
    assert list(rig.held) == ["next"]
    rig.wait(1)
    assert rig.release() == []
    assert (rig.refused["next"].reason, rig.refused["next"].waited) == ("no-endpoints", 240)


def test_in_an_empty_pool_an_objective_is_a_bound_too():
    rig = FlowRig(pods=0, empty_seconds=30.0)
    rig.come("1", 10, headers={"x-llm-d-slo-ttft-ms": "2000"})
    rig.wait(2)
    assert rig.release() == []
    assert rig.refused["1"].reason == "no-endpoints"


def filled(requests):
    """A rig of a pool that was empty, where so many requests wait, and that gets its first pods."""
    rig = FlowRig(pods=0, empty_seconds=60.0)
    assert [rig.come(str(number), 10) for number in range(requests)] == [None] * requests
    assert rig.quoted == [str(number) for number in range(requests)]  # each once
    for number in range(2):
        rig.add(f"pod-{number}", f"10.0.0.{number + 1}")
        rig.say(f"pod-{number}")
    return rig


def test_the_first_pods_of_an_empty_pool_get_a_few_requests_until_they_answer():
    rig = filled(30)
    went = rig.release()
    assert Counter(rig.sent[name] for name in went) == {"pod-0": 5, "pod-1": 5}
    for name in went:
        if rig.sent[name] == "pod-0":
            rig.refuse(name, Failure.GATEWAY)
    assert rig.release() == []
    rig.begin(next(name for name in went if rig.sent[name] == "pod-1"))
    went = rig.release()
    assert len(went) == 20
    assert {rig.sent[name] for name in went} == {"pod-1"}


def test_first_pods_that_say_nothing_for_a_second_get_the_others_too():
    rig = filled(30)
    assert len(rig.release()) == 10
    rig.wait(0.9)
    assert rig.release() == []
    rig.wait(0.1)
    assert len(rig.release()) == 20
