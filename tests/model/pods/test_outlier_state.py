"""One endpoint's health: which failures count, and how long it is left out for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.model.endpoint import Load
from epp.model.events import EjectionReason
from epp.model.pods.outlier_detection import most_ejected, shows_life
from epp.model.pods.outlier_state import FailedRequest, OutlierState

A, B = (1, 0, 16), (2, 0, 16)


def fail(state, sent_at, prompt=None, *, unanswered=(), **more):
    return state.record_failure(FailedRequest(sent_at, prompt, **more), unanswered)


def failed(*prompts):
    """Return the state after failures, of requests that were sent a second apart."""
    state = OutlierState()
    for number, prompt in enumerate(prompts):
        fail(state, number + 0.5, prompt)
    return state


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ([None] * 3, 3),
        ([A] * 3, 1),
        ([A, B, A], 2),
        ([A, None], 2),
        ([(number, 0, 1) for number in range(500)], 128),
    ],
)
def test_each_prompt_counts_once_where_it_may_be_at_fault(prompts, count):
    assert failed(*prompts).failures == count


@pytest.mark.parametrize(("sent_at", "left"), [(0.4, 2), (0.5, 2), (0.6, 1), (1.5, 1), (1.6, 0)])
def test_a_success_ends_the_row_of_what_was_sent_before(sent_at, left):
    state = failed(A, B)
    state.record_success(sent_at, 5.0)
    assert state.failures == left
    assert state.alive_at == 5.0
    assert fail(state, 6.0, B) is not bool(left)


def test_three_slow_answers_count_once_in_what_is_left_of_a_row_too():
    state = OutlierState()
    for number in range(15):
        fail(state, number + 0.5, slow=True)
    counts = []
    for served in (0.0, 3.0, 9.0, 12.0, 13.0):
        state.record_success(served, 20.0)
        counts.append(state.failures)
    assert counts == [5, 4, 2, 1, 0]


def test_a_failure_that_is_seen_after_a_later_success_is_over():
    state = OutlierState()
    state.record_success(2.0, 3.0)
    assert not fail(state, 1.9)
    assert fail(state, 2.1)
    assert state.failures == 1


def test_what_is_not_answered_yet_may_be_what_ends_a_row():
    state = OutlierState()
    for sent_at in (1.0, 2.0, 3.0):
        fail(state, sent_at, unanswered=[0.5, 9.0])
    assert state.failures == 3
    fail(state, 4.0, unanswered=[3.5])
    assert state.failures == 1
    fail(state, 2.5, unanswered=[3.5])
    assert state.failures == 4
    fail(state, 5.0, unanswered=[])
    assert state.failures == 6


ROW = st.lists(st.tuples(st.booleans(), st.floats(0, 60)), min_size=1, max_size=40)


@given(ROW)
def test_a_row_is_as_long_as_it_was_sent_whenever_what_is_seen(answers):
    """Whatever order ends come in, the row is that of the requests as they were sent."""
    state = OutlierState()
    ends = sorted((sent + late, sent, good) for sent, (good, late) in enumerate(answers))
    waiting = set(range(len(answers)))
    longest = 0
    for now, sent, good in ends:
        waiting.discard(sent)
        if good:
            state.record_success(sent, now)
        else:
            fail(state, sent, unanswered=waiting)
            longest = max(longest, state.failures)
    kinds = "".join("+" if good else "-" for good, _ in answers)
    assert longest <= max(map(len, kinds.split("+")))
    assert state.failures <= len(kinds.rpartition("+")[2])
    if "+" not in kinds:
        assert state.failures == len(kinds)


def test_what_was_sent_before_the_return_no_longer_counts():
    state = failed(None)
    state.eject(EjectionReason.FAILURES, 30.0, 10.0)
    assert not fail(state, 11.0)
    state.uneject(40.0)
    assert not fail(state, 39.0)
    assert fail(state, 40.0)
    assert state.failures == 2


def test_what_another_endpoint_is_to_blame_for_is_taken_back():
    state, encode, other, third = (OutlierState() for _ in range(4))
    for number in range(6):
        fail(state, float(number), stages=[encode, other] if number % 3 else ())
    state.forgive(third)
    assert state.failures == 6
    state.forgive(other)
    assert state.failures == 2


@pytest.mark.parametrize("every", [1, 2, 5, 10, 50])
def test_the_share_of_failures_follows_what_comes(every):
    state = OutlierState()
    assert state.share(1_000) == 0.0
    for sent in range(1_000, 1_000 + 200 * every, every):
        state.count_failure(sent)
    assert state.share(sent) == pytest.approx(1 / every, rel=0.01)
    assert state.share(sent + 100_000) < 1e-3


def test_ejections_in_a_row_last_longer_up_to_a_bound():
    state, lasted = OutlierState(), []
    for now in range(0, 8_000, 1_000):
        lasted.append(state.ejection_seconds(30.0, 150.0))
        state.eject(EjectionReason.FAILURES, lasted[-1], now)
        state.uneject(now + lasted[-1])
    assert lasted == [30, 60, 90, 120, 150, 150, 150, 150]


def test_an_endpoint_that_stays_well_is_left_out_for_less_again():
    state = OutlierState()
    for now in (0.0, 100.0):
        state.eject(EjectionReason.FAILURES, state.ejection_seconds(30.0, 300.0), now)
        state.uneject(state.until)
    assert state.until == 160.0
    # Well since 200: 60 seconds, as long as it was out last, take one ejection away each.
    left = (
        (200.0, 90.0),
        (259.0, 90.0),
        (260.0, 60.0),
        (261.0, 60.0),
        (320.0, 30.0),
        (999.0, 30.0),
    )
    for now, seconds in left:
        state.record_success(now, now)
        assert state.ejection_seconds(30.0, 300.0) == seconds


def test_what_was_well_before_an_ejection_does_not_count_after_it():
    state = OutlierState()
    for now in (0.0, 1_000.0):
        state.eject(EjectionReason.FAILURES, 30.0, now)
        state.uneject(now + 30.0)
        state.record_success(now + 40.0, now + 41.0)
    assert state.ejection_seconds(30.0, 300.0) == 90.0


@pytest.mark.parametrize(
    ("endpoints", "most"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (9, 4), (10, 5)]
)
def test_half_may_be_left_out_but_never_all(endpoints, most):
    assert most_ejected(endpoints) == most


BUSY = Load(waiting=3, running=2, kv_usage=0.5, cache_queries=100.0, cache_hits=50.0)


@pytest.mark.parametrize(
    ("change", "life"),
    [
        ({}, False),
        ({"waiting": 4}, False),
        ({"at": 9.0}, False),
        ({"waiting": 2}, True),
        ({"running": 3}, True),
        ({"kv_usage": 0.51}, True),
        ({"cache_queries": 101.0}, True),
        ({"cache_hits": 51.0}, True),
    ],
)
def test_an_engine_lives_where_its_figures_change(change, life):
    known = {
        "waiting": 3,
        "running": 2,
        "kv_usage": 0.5,
        "cache_queries": 100.0,
        "cache_hits": 50.0,
    }
    assert shows_life(BUSY, Load(**{**known, **change})) is life


def test_figures_that_do_not_count_any_more_are_no_life():
    page = replace(BUSY, counted=True)
    assert not shows_life(page, page.uncounted(0))
    assert not shows_life(page.uncounted(0), page)
    assert shows_life(page.uncounted(0), replace(page, cache_queries=101.0))
