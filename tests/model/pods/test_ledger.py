"""The ledger: who pays, and when; and that it never owes less than nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.pods.ledger import OVERDUE_SECONDS, Ledger
from epp.model.request import RequestId


def ledger_with(*entries, observed=False, now=0.0):
    ledger = Ledger()
    for name, seconds in entries:
        ledger.admit(name, seconds, now, observed=observed)
    return ledger


def test_a_new_ledger_is_empty():
    ledger = Ledger()
    assert (ledger.queued_seconds(5.0), ledger.requests, ledger.count_prefilling(5.0)) == (
        0.0,
        0,
        0,
    )


@pytest.mark.parametrize(
    ("now", "owed", "prefilling"),
    [(0, 6, 3), (0.5, 5.5, 3), (1, 5, 2), (2.5, 3.5, 2), (3, 3, 1), (5.9, 0.1, 1), (6, 0, 0)],
)
def test_the_virtual_clock_works_off_one_after_the_other(now, owed, prefilling):
    ledger = ledger_with(("a", 1), ("b", 2), ("c", 3))
    assert ledger.queued_seconds(now) == pytest.approx(owed)
    assert ledger.count_prefilling(now) == prefilling
    assert ledger.requests == 3


def test_the_clock_starts_when_work_does():
    ledger = ledger_with(("a", 1))
    assert ledger.queued_seconds(10) == 0
    ledger.admit("b", 2, 10, observed=False)
    assert ledger.queued_seconds(10.5) == pytest.approx(1.5)


def test_a_first_token_ends_the_prefill_and_the_next_begins_then():
    ledger = ledger_with(("a", 5), ("b", 2), observed=True)
    ledger.record_first_token("a", 1)
    assert ledger.queued_seconds(1) == 2
    assert ledger.queued_seconds(2) == 1
    assert ledger.count_prefilling(2) == 1
    assert ledger.requests == 2


def test_an_overdue_head_has_no_seconds_left_but_holds_its_place():
    ledger = ledger_with(("a", 5), ("b", 2), observed=True)
    assert ledger.queued_seconds(20) == 2
    assert ledger.count_prefilling(20) == 2
    ledger.record_first_token("a", 20)
    assert ledger.queued_seconds(21) == 1


def test_overtaking_leaves_the_head_alone():
    ledger = ledger_with(("a", 5), ("b", 2), ("c", 1), observed=True)
    ledger.record_first_token("b", 1)
    assert ledger.queued_seconds(1) == 4 + 1
    ledger.record_first_token("a", 3)
    assert ledger.queued_seconds(3) == 1


def test_an_overdue_head_is_written_off():
    ledger = ledger_with(("a", 5), ("b", 2), observed=True)
    due = 5 + OVERDUE_SECONDS
    assert ledger.count_prefilling(due - 0.1) == 2
    assert ledger.count_prefilling(due) == 1
    assert ledger.queued_seconds(due) == 2
    assert ledger.requests == 2  # it may well be decoding


def test_the_clock_ends_prefills_of_unobserved_requests():
    ledger = ledger_with(("a", 5), ("b", 2), observed=True)
    ledger.mark_unobserved("a")
    assert ledger.queued_seconds(6) == pytest.approx(1)
    assert ledger.requests == 2  # until somebody says that it is over
    assert ledger.count_prefilling(6) == 1


def test_a_prefill_that_is_overdue_ends_when_marked_unobserved():
    ledger = ledger_with(("a", 5), observed=True)
    ledger.mark_unobserved("a")
    assert (ledger.queued_seconds(30), ledger.count_prefilling(30)) == (0, 0)


@pytest.mark.parametrize("observed", [True, False])
def test_the_end_removes_the_request_and_its_prefill(observed):
    ledger = ledger_with(("a", 5), ("b", 2), observed=observed)
    ledger.end("a", 1)
    assert (ledger.queued_seconds(1), ledger.requests, ledger.count_prefilling(1)) == (2, 1, 1)
    ledger.end("b", 1)
    assert (ledger.queued_seconds(1), ledger.requests, ledger.count_prefilling(1)) == (0, 0, 0)


def test_unknown_requests_change_nothing():
    ledger = ledger_with(("a", 5), observed=True)
    ledger.record_first_token("x", 0)
    ledger.mark_unobserved("x")
    ledger.end("x", 0)
    assert (ledger.queued_seconds(0), ledger.requests) == (5, 1)


def test_rounding_never_makes_queued_seconds_negative():
    ledger = ledger_with(("a", 0.1), ("b", 0.2), ("c", 0.3), ("d", 0.4), observed=True)
    for name in ("a", "b", "c"):
        ledger.record_first_token(name, 0)
    assert 0 <= ledger.queued_seconds(1) <= 1e-9


def test_queued_seconds_do_not_depend_on_earlier_queries():
    lookup, silent = (ledger_with(("a", 5), ("b", 2), ("c", 1), observed=True) for _ in range(2))
    for now in range(70):
        lookup.queued_seconds(now)
    assert lookup.queued_seconds(66.5) == silent.queued_seconds(66.5) == 1.5
    assert lookup.queued_seconds(500) == silent.queued_seconds(500) == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(("admit", "record_first_token", "mark_unobserved", "end")),
        st.integers(0, 5).map(str),
        st.sampled_from((0.0, 0.1, 0.2, 0.3, 0.7, 5.0, 70.0)),
        st.booleans(),
    ),
    max_size=40,
)


@given(steps)
def test_events_in_any_order(script):
    ledger, now, booked, owing = Ledger(), 0.0, set(), {}
    for verb, name, amount, observed in script:
        if verb == "admit":
            if name in booked:
                continue
            ledger.admit(name, amount, now, observed=observed)
            booked.add(name)
            owing[name] = amount
        else:
            now += amount
            when = () if verb == "mark_unobserved" else (now,)
            getattr(ledger, verb)(name, *when)
            if verb == "end":
                booked.discard(name)
        assert 0 <= ledger.queued_seconds(now) <= sum(owing.values()) + 1e-9
        assert ledger.requests == len(booked)
    assert ledger.queued_seconds(now + 1e6) == 0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.data())
def test_queued_seconds_are_the_sum_of_what_is_left(amounts, data):
    ledger = ledger_with(
        *((str(number), amount) for number, amount in enumerate(amounts)), observed=True
    )
    left = dict(enumerate(amounts))
    for gone in data.draw(st.permutations(range(len(amounts)))):
        assert ledger.queued_seconds(0) == pytest.approx(sum(left.values()), abs=1e-6)
        ledger.record_first_token(str(gone), 0)
        del left[gone]
    assert ledger.queued_seconds(0) == 0


def test_a_long_queue_is_freed():
    ledger = ledger_with()
    for number in range(200_000):
        ledger.admit(str(number), 1.0, 0.0, observed=True)
    assert ledger.queued_seconds(0.0) == pytest.approx(200_000)
    del ledger


A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


def test_tokens_are_queued_until_their_prefill_is_over():
    ledger = Ledger()
    ledger.admit(A, 1, 0, observed=True, tokens=100)
    ledger.admit(B, 2, 0, observed=False, tokens=30)
    assert ledger.queued_tokens == 130
    ledger.record_first_token(A, 0.5)  # b runs from here on, and is over at 2.5
    assert ledger.queued_tokens == 30
    assert ledger.count_prefilling(2.4) == 1
    assert ledger.queued_tokens == 30
    assert ledger.count_prefilling(2.6) == 0
    assert ledger.queued_tokens == 0
    ledger.admit(C, 1, 3, observed=True, tokens=5)
    assert ledger.queued_tokens == 5
    ledger.end(C, 3)
    assert ledger.queued_tokens == 0


@pytest.mark.parametrize(
    ("took", "teaches"), [(0.2, False), (0.4, False), (0.5, True), (5.0, True)]
)
def test_a_span_below_the_decodes_beside_it_says_nothing_of_prefill(took, teaches):
    ledger = Ledger()
    ledger.admit(A, 1.0, 0.0, observed=True, beside=0.4)
    assert (ledger.record_first_token(A, took) is not None) == teaches


def spans_of(took, *, at_once=1, expected=0.1, count=40):
    """What is measured of prompts in a queue that is not empty before the last has its token."""
    ledger, requests = Ledger(), [RequestId(str(number)) for number in range(count)]
    for request in requests:
        ledger.admit(request, expected, 0.0, observed=True)
    found = []
    for number, request in enumerate(requests):
        now = took * (number // at_once + 1) + 0.001 * (number % at_once)
        span = ledger.record_first_token(request, now)
        if span is not None:
            expected_seconds, seconds = span
            found.append((round(expected_seconds, 3), round(seconds, 2)))
    return found


def test_a_queue_that_never_empties_is_measured_each_quarter_of_a_second():
    assert spans_of(0.1) == [(0.3, 0.3)] * 12 + [(0.4, 0.4)]


def test_so_is_one_that_takes_much_longer_than_expected():
    assert spans_of(0.3, expected=0.014, count=4) == [(0.014, 0.3)] * 2 + [(0.028, 0.6)]


def test_a_span_ends_with_a_step():
    assert spans_of(0.4, at_once=4) == [(0.4, 0.4)] * 10


def test_none_is_reached_behind_a_prefill_that_takes_longer_than_predicted():
    ledger = Ledger()
    for name in ("a", "b", "c"):
        ledger.admit(RequestId(name), 1.0, 0.0, observed=True)
    assert ledger.reaches(RequestId("b"), 0.1, 2.9)
    assert not ledger.reaches(RequestId("c"), 0.1, 2.9)
    ledger.record_first_token(RequestId("a"), 2.9)
    assert ledger.reaches(RequestId("a"), 0.1, 2.9)
    assert not ledger.reaches(RequestId("c"), 0.1, 3.7)
    assert ledger.reaches(RequestId("c"), 0.1, 3.9)


def test_a_prefill_is_reached_by_the_clock():
    ledger = ledger_with(("a", 1), ("b", 1), ("c", 1))
    assert not ledger.reaches(RequestId("c"), 0.1, 1.85)
    assert ledger.reaches(RequestId("c"), 0.1, 1.95)


def left_by_the_rest(ledger):
    ledger.record_first_token(A, 0.1)
    ledger.end(B, 0.2)


UNMEASURED = {
    "delayed": lambda ledger: ledger.delay(A),
    "asleep": lambda ledger: ledger.record_sleep(0.1),
    "not seen": lambda ledger: ledger.mark_unobserved(A),
    "broken off": left_by_the_rest,
}


@pytest.mark.parametrize("happens", UNMEASURED.values(), ids=UNMEASURED)
def test_what_was_not_measured_leaves_nothing_to_the_next_queue(happens):
    ledger = Ledger()
    for request in (A, B):
        ledger.admit(request, 0.1, 0.0, observed=True)
    happens(ledger)
    for request in (A, B):
        ledger.end(request, 0.4)
    ledger.admit(C, 0.5, 1.0, observed=True)
    assert ledger.record_first_token(C, 1.75) == (0.5, 0.75)
