"""What goes on out of sight: when it is said to go on, and to end."""

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId, Load
from epp.model.pods.unobserved import UnobservedRequest, UnobservedRequests
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Generated

POD = EndpointId("default/pod-0")
R = RequestId("r")


def unseen(request=R, endpoint_id=POD, **course):
    """Return a request of 100 tokens at 50 a second, but for what `course` says."""
    usual: dict[str, float] = {
        "since": 10.0,
        "began": 10.0,
        "seconds_per_token": 0.02,
        "length": 100.0,
    }
    return UnobservedRequest(request, endpoint_id, **(usual | course))


ONE = unseen()


def following(*unseen):
    clock = UnobservedRequests()
    for each in unseen:
        clock.add(each)
    return clock


def count(clock, at, requests, booked, *, coming=0, place=POD):  # noqa: PLR0913 (a report and the books)
    """Have an engine count its requests."""
    return clock.reconcile(place, Load(at=at, running=requests), booked, coming)


def run(clock, until):
    return list(clock.advance(until))


def live(clock, start, until):
    """Call every tenth of a second."""
    ticks = range(round(start * 10), round(until * 10) + 1)
    return [each for tick in ticks for each in run(clock, tick / 10)]


def test_it_goes_on_and_ends():
    clock = following(ONE)
    assert clock.due == pytest.approx(11.28)
    told = live(clock, 10.0, 12.5)
    assert [round(at, 2) for at, _ in told] == [11.28, 11.98]
    assert [event for _, event in told] == [Generated(R, 65), Aborted(R, 100)]
    assert (len(clock), clock.due) == (0, inf)


def test_a_late_call_skips_what_is_past():
    told = run(following(ONE), 1e6)
    assert [type(event) for _, event in told] == [Generated, Aborted]
    assert told[-1][0] == ONE.due


def test_nothing_is_generated_before_the_prefill_is_over():
    waiting = unseen(began=20.0)
    assert waiting.generated(19.9) == 0
    clock = following(waiting)
    assert clock.due == pytest.approx(21.28)
    assert run(clock, 21.2) == []


@pytest.mark.parametrize(("most", "tokens"), [(inf, 400), (40, 40), (0, 0)])
def test_no_more_than_may_be(most, tokens):
    assert unseen(most=most).generated(1e6) == tokens


@pytest.mark.parametrize("seconds_per_token", [0.0, 1e-9])
def test_a_pace_that_cannot_be(seconds_per_token):
    fast = unseen(seconds_per_token=seconds_per_token)
    assert fast.generated(10.0) == 1
    assert len(run(following(fast), 1e6)) <= 2


def test_discarded_requests_yield_no_events():
    clock = following(ONE)
    clock.discard(R)
    clock.discard(RequestId("who"))
    assert run(clock, 1e6) == []


def test_the_same_id_again_is_another_request():
    clock = following(ONE, unseen(since=11.0, began=11.0))
    assert run(clock, 1e6)[-1] == (pytest.approx(12.98), Aborted(R, 100))


def test_as_long_as_the_engine_runs_it_it_is_overdue():
    clock = following(ONE)
    run(clock, 11.9)
    assert count(clock, 11.9, 1, 1) == []
    told = live(clock, 11.9, 13.8)
    assert {type(event) for _, event in told} == {Generated}
    assert told[-1][1].pieces > 125 > ONE.length
    assert count(clock, 13.8, 1, 1) == []
    assert count(clock, 15.0, 0, 1) == [Aborted(R, 251)]
    assert len(clock) == 0


def test_an_overdue_request_ends_at_the_bound():
    clock = following(ONE)
    told = []
    for second in range(11, 40):
        told += live(clock, second - 0.9, second)
        count(clock, second, 1, len(clock))
    assert told[-1] == (pytest.approx(10 + 4 * 1.98 + 10), Aborted(R, 400))


def test_one_that_has_lasted_too_long_before_ends_at_once():
    clock = following(unseen(since=100.0))
    assert run(clock, 100.0) == [(100.0, Aborted(R, 400))]


def test_the_same_count_again_is_no_other_count():
    clock = following(*(unseen(RequestId(str(n))) for n in range(3)))
    assert len(count(clock, 11.0, 2, 3)) == 1
    assert count(clock, 11.0, 0, 2) == []


@pytest.mark.parametrize(
    ("at", "requests"), [(9.0, 1), (11.0, 5)], ids=["counted before", "others are there"]
)
def test_a_count_that_tells_nothing_leaves_it_to_the_clock(at, requests):
    clock = following(ONE)
    assert count(clock, at, requests, 1) == []
    assert run(clock, 12.0)[-1] == (ONE.due, Aborted(R, 100))


def test_a_count_with_requests_of_others_decides_nothing():
    clock = following(ONE)
    count(clock, 11.5, 1, 1)
    live(clock, 11.5, 13.0)
    count(clock, 13.0, 9, 1)
    (told,) = live(clock, 13.0, 14.0)
    assert told == (pytest.approx(13.26, abs=0.2), Aborted(R, round(1 + (told[0] - 10) / 0.02)))


def test_a_count_expires():
    clock = following(unseen(length=600))
    count(clock, 21.0, 1, 1)
    at, event = live(clock, 21.0, 40.0)[-1]
    assert 31.0 <= at < 32.3
    assert event == Aborted(R, int(1 + (at - 10) / 0.02 + 1e-6))


def test_until_the_next_count_they_end_as_often_as_on_average():
    clock = following(*(unseen(RequestId(str(n)), began=10.0 + n / 10) for n in range(4)))
    assert count(clock, 11.0, 4, 4) == []
    ends = [(at, event) for at, event in run(clock, 13.2) if isinstance(event, Aborted)]
    whole = 1.98  # the first of four ends after a quarter of it, the next after a third
    times = [11 + whole / 4, 11 + whole * (1 / 4 + 1 / 3), 11 + whole * (1 / 4 + 1 / 3 + 1 / 2)]
    assert [at for at, _ in ends] == pytest.approx(times)
    assert [event.request_id for _, event in ends] == ["0", "1", "2"]


def test_those_that_ended_too_early_are_made_up_for():
    early, right = (following(ONE, unseen(RequestId("other"))) for _ in range(2))
    count(early, 11.0, 3, 2)
    count(right, 11.0, 2, 2)
    ends = [
        next(at for at, event in run(each, 20.0) if isinstance(event, Aborted))
        for each in (early, right)
    ]
    assert ends == pytest.approx([11.0 + 2 * 0.99, 11.0 + 0.99])


SPREADS = {
    "all alike": lambda _: 1.0,
    "evenly spread": lambda draw: draw.uniform(0, 2),
    "exponential": lambda draw: draw.expovariate(1),
    "long tail": lambda draw: draw.lognormvariate(-0.5, 1.0),
}


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize("running", [2, 8, 40])
def test_as_many_are_there_as_an_engine_runs_that_is_asked_once_a_second(spread, running):
    draw, clock = Random(running), UnobservedRequests()  # noqa: S311 (traffic)
    ends: list[float] = []
    errors, now, counted = [], 0.0, 0.0
    for number in range(1500):
        now += draw.expovariate(running / 4)  # responses take four seconds on average
        while counted + 1 <= now:
            counted += 1
            run(clock, counted)
            ends = [end for end in ends if end > counted]
            count(clock, counted, len(ends), len(clock))
        run(clock, now)
        errors.append(len(clock) - sum(end > now for end in ends))
        length = 200 * max(0.01, spread(draw))
        ends.append(now + 0.02 * length)
        clock.add(unseen(RequestId(str(number)), since=now, began=now, length=200.0))
    assert abs(sum(errors) / len(errors)) < 0.25 + 0.025 * running


def test_those_end_whose_time_came_first():
    clock = following(*(unseen(RequestId(str(n)), began=10.0 + n / 10) for n in (3, 1, 2, 0)))
    assert count(clock, 11.0, 2, 5, coming=1) == [
        Aborted(RequestId("0"), 51),
        Aborted(RequestId("1"), 46),
    ]
    assert count(clock, 11.0, 0, 5, place=EndpointId("default/other")) == []
    assert len(clock) == 2


@pytest.mark.parametrize("later", [{"since": 12.0, "began": 12.0}, {"since": 12.0}])
def test_what_was_sent_or_seen_after_the_count_is_not_in_it(later):
    clock = following(ONE, unseen(RequestId("later"), **later))
    assert count(clock, 11.0, 0, 2) == [Aborted(R, 51)]


names, places = st.integers(0, 5).map(str), st.sampled_from(("a", "b"))
courses = st.fixed_dictionaries(
    {
        "request": names,
        "endpoint_id": places,
        "since": st.just(0.0),
        "began": st.floats(-500, 5),
        "seconds_per_token": st.floats(0, 1),
        "length": st.floats(1, 500),
        "most": st.sampled_from((inf, 0, 1, 50)),
    }
)
steps = st.one_of(
    courses,
    names,
    st.floats(0, 100),
    st.tuples(places, st.floats(0, 10), st.integers(0, 6), st.integers(0, 3)),
)


class Listener:
    """Follows a clock, and holds what it tells to what it was told."""

    def __init__(self):
        self.clock = UnobservedRequests()
        self.now = 0.0
        self.open = {}
        self.told = {}

    def hear(self, at, event):
        each = self.open[event.request_id]
        over = isinstance(event, Aborted)
        tokens = event.generated if over else event.pieces
        assert self.told.get(each, 0) <= tokens <= min(each.most, 4 * each.length)
        self.told[each] = tokens
        if over:
            del self.open[event.request_id]
            assert each.since <= at <= max(each.since, each.last)

    def take(self, course):
        each = unseen(**(course | {"since": self.now, "began": self.now + course["began"]}))
        self.clock.add(each)
        self.open[each.id] = each

    def forget(self, name):
        self.clock.discard(name)
        self.open.pop(name, None)

    def wait(self, seconds):
        before, self.now = self.now, self.now + seconds
        for at, event in self.clock.advance(self.now):
            assert before <= at <= self.now
            before = at
            self.hear(at, event)
        assert self.clock.due > self.now

    def count(self, told):
        place, requests, booked, coming = told
        for event in count(self.clock, self.now, requests, booked, coming=coming, place=place):
            self.hear(self.now, event)


VERBS = {
    dict: Listener.take,
    str: Listener.forget,
    float: Listener.wait,
    tuple: Listener.count,
}


@given(st.lists(steps, max_size=40))
def test_whatever_comes_each_ends_once_in_order_and_in_time(script):
    listener = Listener()
    for step in script:
        VERBS[type(step)](listener, step)
        assert len(listener.clock) == len(listener.open)
    listener.wait(1e9)
    clock = listener.clock
    assert (listener.open, len(clock), clock.due) == ({}, 0, inf)
    assert (clock._by_endpoint, clock._counted, clock._next_ends) == ({}, {}, {})
