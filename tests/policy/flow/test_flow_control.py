"""Requests wait while their best endpoint has no room, go in the right order, and none is lost."""

import gc

import pytest

from epp.model.request import RequestId
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.rooms import Axis
from tests.policy.flow.flow_rig import LONG, FlowRig
from tests.strategies import request


@pytest.fixture
def rig():
    return FlowRig()


def test_while_there_is_room_nothing_waits(rig):
    assert {rig.come(str(number), 100) for number in range(20)} == {"pod-0", "pod-1"}
    assert rig.flow.would_wait.total() == 0
    assert rig.until() is None


def test_requests_without_a_prompt_keep_nobody_waiting(rig):
    for number in range(2000):
        rig.flow.route(request(f"models {number}"), rig.now)
    assert rig.come("chat", 100) is not None
    assert rig.flow.would_wait.total() == 0


def test_a_request_waits_while_all_owe_prefill_and_goes_at_a_first_token(rig):
    assert sorted(rig.fill()) == ["pod-0", "pod-1"]
    assert rig.come("next", 1000) is None
    assert rig.release() == []
    rig.begin("first 1")
    assert rig.release() == ["next"]
    assert rig.sent["next"] == rig.sent["first 1"]
    assert rig.until() is None


def test_requests_of_one_client_that_wait_share_its_id(rig):
    rig.fill()
    for number in range(3):
        rig.come(f"next {number}", 1000, fairness_id=b"client-a".decode())
    first, *others = [held.request.fairness_id for held in rig.held.values()]
    assert first == "client-a"
    assert all(each is first for each in others)


def test_those_that_wait_are_not_looked_at_once_the_last_room_is_taken(rig):
    rig.fill()
    came = rig.now
    for priority in range(4):
        rig.come(f"next {priority}", LONG, priority=priority)
    rig.wait(0.1)
    rig.begin("first 1")
    assert rig.release() == ["next 3"]
    assert {held.tried_at for held in rig.held.values()} == {came}


def test_prefill_that_is_done_by_the_clock_makes_room_too(rig):
    rig.fill()
    rig.come("next", 1000)
    at = rig.until()
    assert at is not None
    assert at - rig.now <= 0.02
    rig.wait(2)  # 20,000 tokens take 1.2 seconds
    assert rig.release() == ["next"]


def test_what_asks_no_engine_for_work_does_not_wait(rig):
    rig.fill()
    outcome = rig.flow.route(request("models"), rig.now)
    assert outcome.endpoint.name in {"pod-0", "pod-1"}


def served_one_by_one(rig, prompt):
    """Serve those that wait as they go; return their order."""
    went = []
    while rig.held:
        for each in rig.release():
            went.append(each)
            rig.begin(each)
            rig.end(each, prompt, 10)
    return went


def test_the_shortest_goes_first_and_waiting_counts():
    rig = FlowRig(pods=1, ageing=0.1)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    rig.come("long", 15_000)  # 0.8 seconds of prefill
    rig.wait(0.01)
    rig.come("short", 100)
    rig.wait(9)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    rig.come("late", 200)
    rig.say("pod-0")
    went = served_one_by_one(rig, 100)
    # 9 seconds of waiting are worth 0.9 of prefill.
    assert went == ["short", "long", "late"]
    assert [each[:2] for each in rig.outcomes] == [(name, "Dispatched") for name in went]


def test_priorities_go_before_and_fair_shares_within_them():
    rig = FlowRig(pods=1)
    rig.come("first", LONG)
    for number in range(6):
        rig.come(f"flood {number}", 8000, fairness_id="flood")
    rig.come("polite", 8000, fairness_id="polite")
    rig.come("batch", 10, priority=-1)
    rig.come("urgent", 8000, priority=1)
    rig.end("first", LONG, 10)
    went = served_one_by_one(rig, 8000)
    assert went[0] == "urgent"
    assert went[-1] == "batch"
    assert went.index("polite") <= 2


def test_one_that_waits_does_not_overtake_a_higher_priority_at_an_endpoint_it_changes_to():
    rig = FlowRig(pods=2)
    rig.say("pod-1", running=9.0, kv_usage=1.0)
    assert rig.come("first", 40_000) == "pod-0"
    rig.begin("first")
    assert rig.come("high", 60_000, priority=1) is None
    at = rig.held["high"].endpoint_id
    rig.say("pod-1", running=9.0, kv_usage=1.0)
    rig.come("low", 100)
    waits = {held.endpoint_id for held in rig.held.values()}
    assert waits == {at}
    for _ in range(5):
        rig.wait(0.1)
        assert rig.release() == []  # though there is room for the low one
    rig.end("first", 40_000, 10)
    assert rig.release()[0] == "high"


def test_one_that_comes_does_not_overtake_those_that_wait_at_its_endpoint():
    rig = FlowRig(pods=1)
    rig.come("first", LONG)
    rig.come("waits", 100)
    rig.begin("first")  # there is room now, and "waits" was first
    assert rig.come("next", 200) is None
    assert rig.come("shorter", 8) == "pod-0"
    assert rig.release() == ["waits", "next"]


def test_a_client_that_is_gone_leaves_the_line(rig):
    rig.fill()
    rig.come("gone", 10)
    rig.come("stays", 20)
    rig.flow.withdraw(rig.held.pop("gone"))
    rig.begin("first 0")
    assert rig.release() == ["stays"]
    assert rig.flow.line.requests == rig.flow.line.bytes == 0


def held_in_memory():
    """Return how many requests that wait or waited are kept by anything."""
    return sum(isinstance(each, HeldRequest) for each in gc.get_objects())


def test_nothing_is_left_of_many_clients_that_are_gone_while_others_wait():
    rig = FlowRig(pods=1)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    rig.come("stays", 10)
    before = held_in_memory()
    for number in range(100):
        name = f"gone {number}"
        rig.come(name, 100, fairness_id=f"client {number % 3}")
        rig.flow.withdraw(rig.held.pop(name))
    assert rig.flow.line.requests == 1
    assert held_in_memory() <= before + 3


def test_who_has_waited_longest_is_sent_all_the_same():
    rig = FlowRig(pods=1, most_seconds=5.0)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    rig.come("next", 10)
    for _ in range(4):
        rig.wait(1)
        rig.say("pod-0", running=9.0, kv_usage=1.0)  # for ever full
        assert rig.release() == []
    rig.wait(1)
    assert rig.release() == ["next"]


def test_a_proxy_whose_timer_runs_is_not_kept_waiting():
    rig = FlowRig(pods=1)
    rig.come("first", LONG)
    assert rig.come("buffered", 10, most_wait=0.1) is None
    rig.wait(0.1)
    assert rig.release() == ["buffered"]
    assert rig.come("none", 10, most_wait=0.0) == "pod-0"


def test_all_answers_are_watched_while_room_is_scarce():
    rig = FlowRig(pods=1)
    unknown = RequestId("which the fleet needs no end of")
    rig.come("first", LONG)
    assert not rig.flow.needs_end(unknown, rig.now)
    rig.come("next", 10)
    assert rig.flow.needs_end(unknown, rig.now)
    rig.begin("first")
    assert rig.release() == ["next"]
    assert rig.flow.needs_end(unknown, rig.now)
    rig.wait(60)
    assert not rig.flow.needs_end(unknown, rig.now)


def test_off_only_counts():
    rig = FlowRig(pods=1, holds=False)
    assert [rig.come(str(number), LONG) for number in range(3)] == ["pod-0"] * 3
    assert rig.flow.would_wait == {Axis.PREFILL: 2}
