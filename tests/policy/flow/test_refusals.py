"""What is expected of a wait, how many may wait and for how long, and who is refused for it."""

from math import inf

import pytest

from epp.errors import Overloaded
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.kv_changes import CacheCleared
from epp.model.request import Api
from epp.policy.flow.expected_wait import ReleaseRate
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.settings import BandLimits
from tests.policy.flow.flow_rig import LONG, FlowRig
from tests.protocol.growth import AGAIN, too_steep
from tests.strategies import request

UNLIMITED = 9


def due(milliseconds):
    return {"headers": {"x-llm-d-slo-ttft-ms": str(milliseconds)}}


def backlog(rate=1.0, requests=20, **settings):
    """A pod that is busy, a line before it, and a rate at which work went: seconds a second."""
    rig = FlowRig(pods=1, ageing=0.0, **settings)
    rig.come("first", LONG)
    for number in range(requests):
        rig.come(str(number), 1000 + 16 * number)
    known = rig.flow.refusals.wait.rate
    for _ in range(10):
        rig.wait(1)
        known.add(rate, rig.now)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    return rig


class TestRate:
    def test_nothing_is_known_at_first(self):
        rate = ReleaseRate()
        rate.begin(0.0)
        rate.add(5.0, 0.1)
        rate.add(5.0, 0.2)
        assert rate.value(0.5) == inf
        assert rate.value(2.0) == pytest.approx(5.0, rel=0.1)

    def test_time_in_which_none_waits_does_not_count(self):
        rate = ReleaseRate()
        rate.begin(0.0)
        for second in range(1, 11):
            rate.add(2.0, float(second))
        rate.pause()
        before = rate.value(10.0)
        rate.begin(5000.0)
        assert rate.value(5000.0) == before == pytest.approx(2.0, rel=0.1)

    def test_a_clock_that_jumps_counts_as_a_short_pause(self):
        rate = ReleaseRate()
        rate.begin(100.0)
        for second in range(1, 61):
            rate.add(1.0, 100.0 + second)
        assert rate.value(1e9) > 0.5
        assert rate.value(0.0) > 0.5  # and back


def test_what_is_before_a_request_goes_by_the_order():
    rig = backlog()
    wait, line = rig.flow.refusals.wait, rig.flow.line
    work = {held.request.id: held.work for held in line}
    shortest = min(line, key=lambda held: held.rank)
    longest = max(line, key=lambda held: held.rank)
    assert wait.seconds(shortest, rig.now) == 0.0
    ahead = sum(work.values()) - longest.work
    assert wait.seconds(longest, rig.now) == pytest.approx(ahead, rel=0.1)


def test_another_flow_gets_as_much_and_no_more():
    rig = backlog()
    work = next(iter(rig.flow.line)).work
    rig.come("polite", 1000, fairness_id="polite")
    wait = rig.flow.refusals.wait.seconds(rig.held["polite"], rig.now + 0.5)
    assert wait == pytest.approx(work, rel=0.2)
    rig.come("urgent", 1000, priority=3)
    assert rig.flow.refusals.wait.seconds(rig.held["urgent"], rig.now + 1) == 0.0
    behind = rig.flow.refusals.wait.seconds(rig.held["polite"], rig.now + 1)
    assert behind == pytest.approx(work + rig.held["urgent"].work, rel=0.2)


def test_a_deadline_that_will_not_be_met_is_refused_at_once():
    rig = backlog(rate=0.1)
    with pytest.raises(Overloaded) as raised:
        rig.come("hasty", 1400, **due(2000))
    error = raised.value
    assert (error.status, error.reason) == (429, "ttft-unmet")
    assert error.dropped_reason == "rejected-saturated"
    assert error.waited == 0.0
    assert 10 < (error.retry_after or 0) < 300
    assert "2000 ms" in str(error)
    assert rig.outcomes[-1] == ("hasty", "RejectedCapacity", 0.0)
    assert rig.come("patient", 1400, **due(600_000)) is None
    assert rig.come("short", 10, **due(2000)) is None  # it goes next


def test_while_no_rate_is_known_none_is_refused_before_its_time():
    rig = FlowRig(pods=1)
    rig.come("first", LONG)
    for number in range(20):
        rig.come(str(number), 1000 + 16 * number)
    assert rig.come("hasty", 1001, **due(500)) is None
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    rig.wait(0.5)
    rig.release()
    error = rig.refused["hasty"]
    assert (error.reason, rig.outcomes[-1][1]) == ("ttft-unmet", "EvictedTTL")
    assert error.waited == 0.5


def test_an_objective_shorter_than_the_prefill_is_refused_once_it_would_wait():
    rig = FlowRig(pods=1)
    assert rig.come("first", LONG, **due(1)) == "pod-0"  # there is room: it goes
    with pytest.raises(Overloaded):
        rig.come("next", LONG, **due(1))


def test_an_objective_is_judged_by_what_the_prompt_takes_where_it_would_go_now():
    rig = FlowRig(pods=1)
    prompt = rig.words(40_000)
    asked = request("before", prompt)
    rig.flow.route(asked, rig.now)
    rig.begin("before")
    rig.end("before", 40_000)
    rig.come("first", LONG)
    waits = rig.flow.route(request("next", prompt, **due(1000)), rig.now)
    assert isinstance(waits, HeldRequest)
    rig.held["next"] = waits
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    rig.add("pod-1", "10.0.0.2")
    rig.say("pod-1")
    assert waits.latest > rig.now + 0.5  # as long as its prompt was cached
    assert rig.release() == []
    assert rig.refused["next"].reason == "ttft-unmet"
    assert rig.flow.line.seconds == 0


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-5", "0", "1e300", "9" * 400])
def test_absurd_objectives_are_none(text):
    rig = FlowRig(pods=1)
    rig.come("first", LONG)
    assert rig.come("next", 10, headers={"x-slo-ttft-ms": text}) is None
    assert rig.held["next"].ttft_by == inf


def test_retry_after_is_when_there_may_be_a_place():
    rig = backlog(rate=0.02, max_requests=20.0)
    work = sum(held.work for held in rig.flow.line)
    with pytest.raises(Overloaded) as raised:
        rig.come("more", 40_000, max_tokens=10**9)
    assert raised.value.reason == "line-full"
    assert raised.value.retry_after == pytest.approx(work / 0.02, rel=0.2)


def test_a_deadline_refuses():
    rig = FlowRig(pods=1, band=BandLimits(ttl=2.0))
    rig.come("first", LONG)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    rig.come("late", 10)
    rig.wait(2)
    assert rig.release() == []
    error = rig.refused["late"]
    assert isinstance(error, Overloaded)
    assert (error.status, error.reason, error.retry_after) == (429, "ttl-expired", 1)


@pytest.mark.parametrize("kept", [True, False])
def test_a_prefix_that_a_client_wants_cached_may_be_gone_when_its_turn_comes(kept):
    rig, words = FlowRig(pods=1), list(range(4000))
    rig.flow.route(request("before", words), rig.now)
    rig.end("before", 4000)
    rig.come("long", LONG)
    asked = request("asked", words, api=Api.CHAT, headers={"prefer": "if-available"})
    rig.held["asked"] = rig.flow.route(asked, rig.now)
    assert isinstance(rig.held["asked"], HeldRequest)
    if not kept:
        rig.apply(CacheCleared(EndpointId("default/pod-0")))
    rig.wait(5)
    rig.end("long", LONG)
    assert rig.release() == (["asked"] if kept else [])
    assert [each.status for each in rig.refused.values()] == ([] if kept else [412])


@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        ({"band": BandLimits(max_requests=2)}, 2),
        ({"band": BandLimits(max_bytes=250)}, 2),
        ({"max_requests": 3}, 3),
        ({"max_bytes": 199}, 1),
        ({"bands": {1: BandLimits(max_requests=0)}}, UNLIMITED),
    ],
)
def test_no_more_wait_than_may(limits, taken):
    rig = FlowRig(pods=1, **limits)
    rig.come("first", LONG)
    for number in range(taken):
        rig.come(str(number), 10, size=100)
    assert rig.flow.line.requests == taken
    if taken < UNLIMITED:
        with pytest.raises(Overloaded) as raised:
            rig.come("more", 10, size=100)
        assert (raised.value.status, raised.value.reason) == (429, "line-full")
        assert rig.flow.line.requests == taken


def test_a_flood_that_fills_the_line_gives_places_to_others():
    rig = FlowRig(pods=1, band=BandLimits(max_requests=6))
    rig.come("first", LONG)
    for number in range(6):
        rig.come(f"flood {number}", 1000 + number, fairness_id="flood")
    for number in range(3):
        assert rig.come(f"polite {number}", 10, fairness_id="polite") is None
    assert [rig.release(), rig.release()] == [[], []]  # each is refused once
    assert sorted(rig.refused) == ["flood 3", "flood 4", "flood 5"]
    assert {(error.status, error.reason) for error in rig.refused.values()} == {(429, "line-full")}
    for name in ("polite", "flood"):  # both have half of the places
        with pytest.raises(Overloaded):
            rig.come("more", 10, fairness_id=name)
    assert rig.flow.line.requests == len(rig.held) == 6


def test_a_body_that_is_larger_than_all_that_may_wait_takes_no_place_from_others():
    rig = FlowRig(pods=1, band=BandLimits(max_bytes=100))
    rig.come("first", LONG)
    for number in range(5):
        rig.come(f"flood {number}", 10, size=20, fairness_id="flood")
    with pytest.raises(Overloaded):
        rig.come("huge", 10, size=101, fairness_id="other")
    assert rig.flow.line.requests == 5
    assert rig.come("large", 10, size=50, fairness_id="other") is None
    rig.release()
    assert len(rig.refused) == 3
    assert rig.flow.line.bytes == 90


@pytest.mark.parametrize(
    ("newcomer", "reason"),
    [
        ({"size": 10, "tokens": LONG, **due(1)}, "ttft-unmet"),
        ({"size": 90, "tokens": 10}, "line-full"),
    ],
    ids=["its objective cannot be met", "too few have more than it"],
)
def test_one_that_is_refused_takes_no_place_from_others(newcomer, reason):
    rig = FlowRig(pods=1, band=BandLimits(max_bytes=100))
    rig.come("first", LONG)
    for number in range(4):
        rig.come(f"flood {number}", 10, size=15, fairness_id="flood")
    rig.come("polite", 10, size=40, fairness_id="polite")
    with pytest.raises(Overloaded) as raised:
        rig.come("more", fairness_id="other", **newcomer)
    assert raised.value.reason == reason
    rig.release()
    assert rig.refused == {}
    assert (rig.flow.line.requests, rig.flow.line.bytes) == (5, 100)


def test_one_that_gave_its_place_and_whose_client_goes_is_counted_once():
    rig = FlowRig(pods=1, band=BandLimits(max_requests=2))
    rig.come("first", LONG)
    for number in range(2):
        rig.come(f"flood {number}", 10 + number, fairness_id="flood")
    rig.come("polite", 10, fairness_id="polite")
    rig.flow.withdraw(rig.held.pop("flood 1"))
    assert rig.release() == []
    assert rig.outcomes == []  # it is for who withdraws it to tell


def test_one_that_takes_the_places_of_many_does_so_in_proportion():
    rigs: dict[bytes, list[FlowRig]] = {}

    def full_lines(size):
        rigs[line := bytes(size // 32)] = [full_line(size // 32) for _ in range(AGAIN + 1)]
        return line

    def full_line(count):
        rig = FlowRig(pods=1, band=BandLimits(max_bytes=count))
        rig.come("first", LONG)
        for number in range(count):
            rig.come(f"flood {number}", 10, size=1, fairness_id="flood")
        return rig

    def displace(line):
        rig = rigs[line].pop()
        rig.come("polite", 10, size=len(line) - 2, fairness_id="polite")
        assert len(rig.flow.refusals.displaced) == len(line) - 2

    assert too_steep(displace, full_lines) == ""
