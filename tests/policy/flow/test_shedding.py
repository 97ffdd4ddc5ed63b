"""An endpoint that refuses requests gets one a second; a saturated pool refuses batches."""

import pytest

from epp.errors import Overloaded
from epp.model.request_events import Failure
from epp.policy.flow.rooms import Axis
from tests.policy.flow.flow_rig import LONG, FlowRig
from tests.strategies import request

FULL = {"running": 3.0, "waiting": 7.0, "kv_usage": 0.95}


def test_a_negative_priority_waits_for_room_while_the_pool_is_saturated():
    rig = FlowRig(pods=1)
    rig.say("pod-0", **FULL)
    assert rig.come("batch", 10, priority=-1) is None
    rig.say("pod-0")
    assert rig.release() == ["batch"]


@pytest.mark.parametrize(
    ("kv_usage", "owed", "went"), [(0.1, 0, "pod-0"), (0.3, 0, None), (0.1, 5000, None)]
)
def test_a_negative_priority_has_less_room_than_others(kv_usage, owed, went):
    rig = FlowRig(pods=1)
    rig.say("pod-0", running=3.0, kv_usage=kv_usage)
    if owed:
        rig.come("before", owed)
    assert rig.come("batch", 10, priority=-1) == went
    assert rig.come("other", 10) == "pod-0"


@pytest.mark.parametrize(
    ("settings", "load", "asked"),
    [
        ({"holds": False}, {}, {}),
        ({}, {"num_blocks": None}, {}),
        ({}, {}, {"most_wait": 0.0}),
    ],
    ids=["off", "of no known room", "a proxy that does not wait"],
)
def test_where_nothing_waits_a_negative_priority_is_refused_then(settings, load, asked):
    rig = FlowRig(pods=1, **settings)
    rig.say("pod-0", **FULL, **load)
    with pytest.raises(Overloaded) as raised:
        rig.come("batch", 10, priority=-1, **asked)
    assert raised.value.reason == "saturated"


def test_a_negative_priority_of_unknown_work_is_refused_while_the_pool_is_saturated():
    rig = FlowRig(pods=1)
    rig.say("pod-0", **FULL)
    with pytest.raises(Overloaded):
        rig.flow.route(request("batch", priority=-1), rig.now)


def shedding(pods, failure=Failure.BUSY):
    """A rig whose pod-0 has just answered five requests with errors."""
    rig = FlowRig(pods=pods)
    for number in range(5):
        rig.send("pod-0", f"shed {number}", rig.words(100))
        rig.refuse(f"shed {number}", failure)
    return rig


@pytest.mark.parametrize("failure", [Failure.BUSY, Failure.EMPTY, Failure.GATEWAY])
def test_an_endpoint_that_refuses_all_gets_one_request_a_second(failure):
    rig = shedding(1, failure)
    assert [rig.come(name) for name in "abc"] == [None] * 3
    assert rig.flow.would_wait[Axis.REFUSALS] == 3
    for name in "ab":
        assert rig.release() == []
        rig.wait(1.0)
        assert rig.release() == [name]
        rig.refuse(name, failure)
    rig.wait(1.0)
    assert rig.release() == ["c"]
    rig.begin("c")
    assert [rig.come(name) for name in "de"] == ["pod-0", "pod-0"]


def test_others_take_the_requests_of_one_that_refuses_whatever_that_costs():
    rig = shedding(2)
    rig.say("pod-1", running=30, kv_usage=0.3)
    assert [rig.come(str(number)) for number in range(3)] == ["pod-1"] * 3


def test_the_errors_of_one_client_s_requests_hold_up_no_others():
    assert shedding(1, Failure.ERROR).come("another's") == "pod-0"


@pytest.mark.parametrize("answer", ["finished", "invalid", "proxys-own"])
def test_a_row_of_refusals_is_of_that_endpoints_answers_alone(answer):
    rig = FlowRig(pods=1)
    for number in range(12):
        rig.send("pod-0", str(number), rig.words(100))
        if number % 3 == 2 and answer == "finished":
            rig.end(str(number))
        elif answer == "invalid":
            rig.refuse(str(number), None)
        else:
            rig.refuse(str(number), served=answer != "proxys-own")
    assert rig.come("next") == "pod-0"


# So steep that chance decides nothing: a pool that is a little busy refuses none.
ADMITTER = """
plugins: [{type: least-ttft-picker}, {type: probabilistic-admitter, parameters: {power: 20}}]
"""
SATURATED = {"waiting": 10.0, "kv_usage": 0.01}


def test_an_admitter_is_asked_once_however_long_a_request_waits():
    rig = FlowRig(policy=ADMITTER)
    cached = rig.words(LONG)
    rig.send("pod-0", "before", cached)
    rig.end("before", LONG)
    rig.send("pod-0", "busy", rig.words(LONG))
    batch = request("batch", cached, priority=-1)
    rig.held["batch"] = rig.flow.route(batch, rig.now)
    rig.say("pod-1", **SATURATED)
    rig.wait(0.1)
    assert rig.release() == []
    assert not rig.refused
    with pytest.raises(Overloaded):
        rig.come("later", 10, priority=-1)
    rig.end("busy", LONG)
    assert rig.release() == ["batch"]


def test_an_admitter_is_asked_about_a_request_that_waited_for_the_first_endpoint():
    rig = FlowRig(pods=0, policy=ADMITTER, empty_seconds=30.0)
    assert rig.come("batch", 10, priority=-1) is None
    rig.add("pod-0", "10.0.0.1")
    rig.say("pod-0", **SATURATED)
    assert rig.release() == []
    assert rig.refused["batch"].reason == "probabilistic-admitter"


LIMITED = """
featureGates: [flowControl]
plugins:
- {type: probabilistic-admitter, parameters: {k: 1e9}}
- {type: max-score-picker}
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
"""


def test_an_admitter_is_asked_once_about_a_request_that_a_detectors_filter_lets_wait():
    rig = FlowRig(pods=1, policy=LIMITED)
    rig.come("before", 10)
    assert rig.come("batch", 10, priority=-1) is None
    rig.end("before", 10)
    rig.say("pod-0", kv_usage=0.1)
    assert rig.release() == ["batch"]
