"""One endpoint's health: which failures count, and how long it is left out for them."""

import pytest

from epp.model.endpoint import Load
from epp.model.events import EjectionReason, Failure
from epp.model.pods.outlier_detection import most_ejected, shows_life
from epp.model.pods.outlier_state import OutlierState

A, B = (1, 0, 16), (2, 0, 16)
GATEWAY, ERROR, EMPTY = Failure


def failed(*failures):
    """Return the state after failures `(kind, prompt)`, a second apart, of requests just sent."""
    state = OutlierState()
    for now, (kind, prompt) in enumerate(failures):
        state.record_failure(kind, prompt, now - 0.5, now)
    return state


@pytest.mark.parametrize(
    ("failures", "count"),
    [
        ([(GATEWAY, A)] * 3, 3),
        ([(EMPTY, A)] * 3, 3),
        ([(ERROR, A)] * 3, 1),
        ([(ERROR, A), (ERROR, B), (ERROR, A)], 2),
        ([(ERROR, A), (GATEWAY, A)], 2),
        ([(ERROR, None)] * 3, 0),
        ([(GATEWAY, None)] * 3, 3),
        ([(ERROR, (number, 0, 1)) for number in range(500)], 128),
    ],
)
def test_each_prompt_counts_once_where_it_may_be_at_fault(failures, count):
    assert failed(*failures).failures == count


@pytest.mark.parametrize(("sent_at", "left"), [(0.9, 2), (1.0, 2), (1.1, 0)])
def test_a_success_ends_the_streak_if_it_was_sent_after_the_last_failure(sent_at, left):
    state = failed((GATEWAY, A), (ERROR, B))
    state.record_success(sent_at, 5.0)
    assert state.failures == left
    assert state.alive_at == 5.0
    assert state.record_failure(ERROR, B, 6.0, 6.0) is not bool(left)


def test_what_was_sent_before_the_return_no_longer_counts():
    state = failed((GATEWAY, A))
    state.eject(EjectionReason.FAILURES, 30.0, 10.0)
    assert not state.record_failure(GATEWAY, A, 11.0, 12.0)
    state.give_back(40.0)
    assert not state.record_failure(GATEWAY, A, 39.0, 41.0)
    assert state.record_failure(GATEWAY, A, 40.0, 41.0)
    assert state.failures == 2


def test_ejections_in_a_row_last_longer_up_to_a_bound():
    state, lasted = OutlierState(), []
    for now in range(0, 8_000, 1_000):
        lasted.append(state.ejection_seconds(30.0, 150.0))
        state.eject(EjectionReason.FAILURES, lasted[-1], now)
        state.give_back(now + lasted[-1])
    assert lasted == [30, 60, 90, 120, 150, 150, 150, 150]


def test_an_endpoint_that_stays_well_is_left_out_for_less_again():
    state = OutlierState()
    for now in (0.0, 100.0):
        state.eject(EjectionReason.FAILURES, state.ejection_seconds(30.0, 300.0), now)
        state.give_back(state.until)
    assert state.until == 160.0
    # Well since 200: 60 seconds, as long as it was out last, take one ejection away each.
    for now, seconds in ((200.0, 90.0), (259.0, 90.0), (260.0, 60.0), (320.0, 30.0), (999.0, 30.0)):
        state.record_success(now, now)
        assert state.ejection_seconds(30.0, 300.0) == seconds


def test_what_was_well_before_an_ejection_does_not_count_after_it():
    state = OutlierState()
    for now in (0.0, 1_000.0):
        state.eject(EjectionReason.FAILURES, 30.0, now)
        state.give_back(now + 30.0)
        state.record_success(now + 40.0, now + 41.0)
    assert state.ejection_seconds(30.0, 300.0) == 90.0


@pytest.mark.parametrize(
    ("endpoints", "most"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (9, 5), (10, 5)]
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
