"""The decode model: its formula, and what it learns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.learning.decode import (
    CONTEXT_SECONDS,
    SEQUENCE_SECONDS,
    STEP_SECONDS,
    DecodeModel,
)


@pytest.mark.parametrize(
    ("sequences", "held", "seconds"),
    [(0, 0, 0.006), (1, 0, 0.006 + 20e-6), (10, 1e5, 0.006 + 200e-6 + 5.6e-3)],
)
def test_the_formula(sequences, held, seconds):
    assert DecodeModel().seconds(sequences, held) == pytest.approx(seconds)


@pytest.mark.parametrize("step", [0.002, 0.006, 0.05])
@pytest.mark.parametrize("sequence", [5e-6, 200e-6])
@pytest.mark.parametrize("context", [20e-9, 200e-9])
def test_step_sequences_and_context_are_learned(step, sequence, context):
    model = DecodeModel()
    for number in range(400):
        sequences, held = 1 + 61 * number % 97, 1000 * (37 * number % 401)
        model.learn(sequences, held, step + sequence * sequences + context * held)
    for sequences, held in ((5, 20_000), (50, 100_000), (90, 400_000)):
        truth = step + sequence * sequences + context * held
        assert model.seconds(sequences, held) == pytest.approx(truth, rel=0.15)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e9), st.floats(-1, 1e5)), max_size=40))
def test_garbage_keeps_factors_in_bounds(samples):
    model = DecodeModel()
    for sequences, held, seconds in samples:
        model.learn(sequences, held, seconds)
        for factor, default in (
            (model.step, STEP_SECONDS),
            (model.sequence, SEQUENCE_SECONDS),
            (model.context, CONTEXT_SECONDS),
        ):
            assert 0.0099 * default <= factor <= 1.01e4 * default
