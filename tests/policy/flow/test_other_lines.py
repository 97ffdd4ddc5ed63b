"""Requests that wait in the lines of other replicas go before one's own if they would in one."""

from math import inf

import pytest

from epp.model.endpoint import EndpointId
from epp.model.quote import Quote
from epp.policy.flow.held import HeldRequest, WaitingElsewhere
from epp.policy.flow.line import Line
from tests.policy.flow.flow_rig import FlowRig
from tests.strategies import request

A, B = EndpointId("default/pod-0"), EndpointId("default/pod-1")
OTHER = 7


def held(name="own", since=0.0, seconds=1.0, endpoint=A, **more):
    asked = request(name, [1], **more)
    made = HeldRequest(asked, Quote(asked, (), ()), since, until=inf, deadline=inf)
    made.endpoint_id, made.seconds = endpoint, seconds
    return made


def waiting(ahead=0.0, **more):
    return WaitingElsewhere(held("other", **more), ahead)


def line(*others, now=0.0):
    made = Line(ageing=0.1)
    made.update_replica(OTHER, others, 5.0, now)
    return made


@pytest.mark.parametrize(
    ("other", "first"),
    [
        (waiting(seconds=0.5), True),
        (waiting(seconds=2.0), False),
        (waiting(), False),  # alike: none lets the other go first
        (waiting(since=-20.0, seconds=2.5), True),
        (waiting(since=-20.0, seconds=3.5), False),
        (waiting(priority=1, seconds=9.0), True),
        (waiting(priority=-1, seconds=0.1), False),
        (waiting(ahead=0.1, seconds=0.1), False),
        (waiting(seconds=0.5, endpoint=B), False),
    ],
)
def test_who_goes_first(other, first):
    made = line(other)
    assert made.yields(held(), A, 0.0) is first


def test_a_flow_that_is_ahead_lets_others_go_first():
    made = line()
    mine = held(fairness_id="mine")
    made.assign_rank(mine)
    mine.work = 3.0
    made.charge(mine)
    made.update_replica(OTHER, [waiting(ahead=2.9, seconds=9.0)], 9.0, 0.0)
    assert made.ahead(held("next", fairness_id="mine")) == 3.0
    assert made.yields(held("next", fairness_id="mine"), A, 0.0)
    assert not made.yields(held("next", fairness_id="another"), A, 0.0)


def test_what_was_told_is_believed_for_a_moment():
    made = line(waiting(seconds=0.5), now=10.0)
    assert made.yields(held(), A, 10.04)
    assert made.seconds_of_all(10.04) == 5.0
    assert not made.yields(held(), A, 10.06)
    assert line(waiting(), now=10.0).seconds_of_all(10.06) == 0.0


def test_each_replica_is_heard_for_itself_and_the_last_word_counts():
    made = line(waiting(seconds=0.5))
    made.update_replica(8, [waiting(seconds=0.6)], 1.0, 0.0)
    assert made.seconds_of_all(0.0) == 6.0
    made.update_replica(OTHER, [], 0.0, 0.0)
    assert made.yields(held(), A, 0.0)
    made.update_replica(8, [waiting(seconds=1.5)], 2.0, 0.0)
    assert not made.yields(held(), A, 0.0)
    assert made.seconds_of_all(0.0) == 2.0


@pytest.fixture
def rig():
    """A pod that has room for a small request."""
    made = FlowRig(pods=1)
    made.come("runs", 50_000)
    return made


def hears(rig, seconds=0.0, endpoint=A):
    rig.flow.line.update_replica(
        OTHER, [waiting(seconds=seconds, endpoint=endpoint, since=rig.now - 5)], 1.0, rig.now
    )


def test_room_that_a_request_elsewhere_waits_for_is_left_to_it(rig):
    rig.begin("runs")
    hears(rig)
    assert rig.come("small", 1000) is None
    assert rig.release() == []
    rig.wait(0.06)  # nothing more is told
    assert rig.release() == ["small"]


def test_room_at_another_endpoint_is_taken(rig):
    rig.begin("runs")
    hears(rig, endpoint=B)
    assert rig.come("small", 1000) == "pod-0"


def test_what_may_wait_no_longer_goes_anyway():
    rig = FlowRig(pods=1, most_seconds=1.0)
    rig.come("runs", 50_000)
    rig.begin("runs")
    hears(rig)
    assert rig.come("small", 1000) is None
    rig.wait(1.01)
    hears(rig)
    assert rig.release() == ["small"]


def test_who_does_not_hold_waits_for_nobody():
    rig = FlowRig(pods=1, holds=False)
    hears(rig)
    assert rig.come("small", 1000) == "pod-0"


def test_changes_are_told():
    made, changes = line(), []
    made.on_change = lambda: changes.append(made.requests)
    one = held("one")
    made.add(one)
    made.remove(one)
    assert not made.remove(one)
    assert changes == [1, 0]
