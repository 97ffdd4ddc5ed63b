"""The prefill model: its formula, what it learns, and what it refuses to believe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.learning.prefill import BUDGET_TOKENS, C1, C2, STEP_SECONDS, PrefillModel, work


@pytest.mark.parametrize(
    ("uncached", "cached", "seconds"),
    [
        (0, 0, STEP_SECONDS),
        (0, 5000, STEP_SECONDS),
        (1, 0, STEP_SECONDS + C1 + C2 / 2),
        (1000, 0, STEP_SECONDS + 0.04 + C2 * 500_000),
        (1000, 3000, STEP_SECONDS + 0.04 + C2 * 1000 * 3500),
        (BUDGET_TOKENS, 0, STEP_SECONDS + work(BUDGET_TOKENS, 0)),
        (BUDGET_TOKENS + 1, 0, 2 * STEP_SECONDS + work(BUDGET_TOKENS + 1, 0)),
        (3 * BUDGET_TOKENS, 10, 3 * STEP_SECONDS + work(3 * BUDGET_TOKENS, 10)),
    ],
)
def test_the_formula(uncached, cached, seconds):
    assert PrefillModel().seconds(uncached, cached) == pytest.approx(seconds)


def spread(start=0.0):
    """Give numbers in 0..1, evenly spread and in no order."""
    number = start
    while True:
        number = (number + 0.6180339887498949) % 1
        yield number


@pytest.mark.parametrize("scale", [0.05, 0.5, 1, 3, 40])
@pytest.mark.parametrize("step", [0.002, 0.03])
def test_a_line_is_learned(scale, step):
    model, lengths, noise = PrefillModel(), spread(), spread(0.5)
    for _ in range(400):
        uncached, cached = 64 + int(7936 * next(lengths)), int(8000 * next(lengths))
        truth = step + scale * work(uncached, cached)
        model.learn(uncached, cached, truth * (0.97 + 0.06 * next(noise)))
    for uncached, cached in ((200, 0), (2000, 500), (7000, 7000)):
        truth = step + scale * work(uncached, cached)
        assert model.seconds(uncached, cached) == pytest.approx(truth, rel=0.15, abs=0.01)


def test_a_change_is_followed():
    model = PrefillModel()
    for factor in (1, 4):
        for number in range(300):
            uncached = 100 + 37 * number % 5000
            model.learn(uncached, 0, 0.01 + factor * work(uncached, 0))
    assert model.scale == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("start", [0.0, 0.2, 0.5])
def test_prompts_of_one_length_say_nothing_of_others(start):
    """One point fixes no line: rounding errors must not choose its slope."""
    model, noise = PrefillModel(), spread(start)
    for _ in range(5000):
        model.learn(1000, 0, 0.046 * (0.7 + 0.8 * next(noise)))
    assert model.seconds(1000, 0) == pytest.approx(0.05, rel=0.15)
    assert model.scale == pytest.approx(1, rel=0.25)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1e5)), max_size=40
    )
)
def test_garbage_keeps_predictions_in_bounds(samples):
    model = PrefillModel()
    for uncached, cached, seconds in samples:
        model.learn(uncached, cached, seconds)
        assert 0.01 <= model.scale <= 1e4
        assert 1e-4 <= model.step < 2e5
        assert model.seconds(0, 0) > 0
        assert model.seconds(500, 100) <= model.seconds(1000, 100)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**5))
def test_more_work_never_takes_less_time(uncached, cached, more):
    model = PrefillModel()
    assert model.seconds(uncached + more, cached) >= model.seconds(uncached, cached)
    assert model.seconds(uncached, cached + more) >= model.seconds(uncached, cached)


def test_a_stall_counts_as_ten_times_what_was_predicted():
    stalled, slow = PrefillModel(), PrefillModel()
    stalled.learn(4000, 0, 300.0)
    slow.learn(4000, 0, 10 * PrefillModel().seconds(4000, 0))
    assert stalled.seconds(4000, 0) == slow.seconds(4000, 0)
