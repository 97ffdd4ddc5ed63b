"""The prefill model: its formula, what it learns, and what it refuses to believe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.learning.prefill import (
    ATTENTION_SECONDS,
    BUDGET_TOKENS,
    STEP_SECONDS,
    TOKEN_SECONDS,
    PrefillModel,
)


def work(uncached, cached):
    return TOKEN_SECONDS * uncached + ATTENTION_SECONDS * uncached * (cached + uncached / 2)


@pytest.mark.parametrize(
    ("uncached", "cached", "seconds"),
    [
        (0, 0, STEP_SECONDS),
        (0, 5000, STEP_SECONDS),
        (1, 0, STEP_SECONDS + TOKEN_SECONDS + ATTENTION_SECONDS / 2),
        (1000, 0, STEP_SECONDS + 0.04 + ATTENTION_SECONDS * 500_000),
        (1000, 3000, STEP_SECONDS + 0.04 + ATTENTION_SECONDS * 1000 * 3500),
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


@pytest.mark.parametrize("token", [0.05, 0.5, 1, 3, 40])
@pytest.mark.parametrize("attention", [0.5, 1, 2])
@pytest.mark.parametrize("step", [0.002, 0.03])
def test_rate_step_and_attention_are_learned(token, attention, step):
    model, lengths, noise = PrefillModel(), spread(), spread(0.5)

    def truth(uncached, cached):
        quadratic = ATTENTION_SECONDS * uncached * (cached + uncached / 2)
        return step + token * (TOKEN_SECONDS * uncached + attention * quadratic)

    for _ in range(400):
        uncached, cached = 64 + int(7936 * next(lengths)), int(30_000 * next(lengths))
        model.learn(uncached, cached, truth(uncached, cached) * (0.97 + 0.06 * next(noise)))
    for uncached, cached in ((200, 0), (2000, 500), (7000, 7000), (7000, 30_000)):
        assert model.seconds(uncached, cached) == pytest.approx(
            truth(uncached, cached), rel=0.15, abs=0.01
        )


@pytest.mark.parametrize("start", [0.0, 0.2, 0.5])
def test_prompts_of_one_length_say_nothing_of_others(start):
    """One point fixes no line: rounding errors must not choose its slope."""
    model, noise = PrefillModel(), spread(start)
    for _ in range(5000):
        model.learn(1000, 0, 0.046 * (0.7 + 0.8 * next(noise)))
    # The middle of the noise, 1.1 times 0.046, is 1.08 times the default: so is every prediction.
    for uncached in (100, 1000, 8000):
        expected = 1.08 * PrefillModel().seconds(uncached, 0)
        assert model.seconds(uncached, 0) == pytest.approx(expected, rel=0.15)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1e5)), max_size=40
    )
)
def test_garbage_keeps_predictions_in_bounds(samples):
    model = PrefillModel()
    for uncached, cached, seconds in samples:
        model.learn(uncached, cached, seconds)
        assert 0.01 * STEP_SECONDS <= model.step <= 1e4 * STEP_SECONDS
        assert model.seconds(500, 100) <= model.seconds(1000, 100)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**5))
def test_more_work_never_takes_less_time(uncached, cached, more):
    model = PrefillModel()
    assert model.seconds(uncached + more, cached) >= model.seconds(uncached, cached)
    assert model.seconds(uncached, cached + more) >= model.seconds(uncached, cached)


@pytest.mark.parametrize(("seconds", "bound"), [(300.0, 10), (1e-6, 0.5), (0.0, 1), (-1.0, 1)])
def test_a_measurement_counts_within_bounds_of_what_was_predicted(seconds, bound):
    odd, bounded = PrefillModel(), PrefillModel()
    odd.learn(4000, 0, seconds)
    bounded.learn(4000, 0, bound * PrefillModel().seconds(4000, 0))
    assert odd.seconds(4000, 0) == pytest.approx(bounded.seconds(4000, 0))


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-3, 3.0, 1e5])
def test_what_is_known_well_is_not_changed_by_what_is_far_off(seconds):
    model, lengths = PrefillModel(), spread()
    for _ in range(40):
        uncached = 64 + int(7936 * next(lengths))
        model.learn(uncached, 0, PrefillModel().seconds(uncached, 0))
    before = model.seconds(4000, 0)
    for _ in range(100):
        model.learn(4000, 0, seconds)
    assert model.seconds(4000, 0) == before


def test_measurements_of_unsure_endpoints_count_if_there_are_nearly_no_others():
    model = PrefillModel()
    usual = model.seconds(1000, 0)
    for _ in range(40):
        model.learn(1000, 0, usual)
    for _ in range(60):  # as of one that is new among others
        model.learn(1000, 0, usual)
        model.learn(1000, 0, 1.5 * usual, sure=False)
    assert model.seconds(1000, 0) == pytest.approx(usual)
    for _ in range(400):
        model.learn(1000, 0, 1.5 * usual, sure=False)
    assert model.seconds(1000, 0) == pytest.approx(1.5 * usual, rel=0.05)
