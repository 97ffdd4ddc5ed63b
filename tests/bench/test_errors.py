"""Predictions are summed up over tokens, not over requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.accuracy.errors import errors
from bench.accuracy.figures import counted, grid, scored
from bench.accuracy.observation import Guess

guesses = st.builds(Guess, st.integers(1, 9999), st.integers(0, 9999), st.integers(0, 9999))


def test_over_and_under_are_shares_of_all_prompt_tokens():
    summed = errors([Guess(100, 50, 40), Guess(300, 0, 60), Guess(600, 64, 64)], block=16)
    assert (summed.requests, summed.over, summed.under) == (3, 1, 6)
    assert summed.hit == pytest.approx(16.4)
    assert summed.mae == 7.0
    assert summed.off == pytest.approx(100 / 3)  # 10 tokens are less than a block


@pytest.mark.parametrize(("error", "off"), [(15, 0), (16, 100), (-16, 100), (0, 0)])
def test_off_by_a_block_means_a_block_or_more(error, off):
    assert errors([Guess(100, 50 + error, 50)], block=16).off == off


def test_nothing_cannot_be_summed_up():
    with pytest.raises(ValueError, match="no request said"):
        errors([], block=16)


@given(st.lists(guesses, min_size=1), st.integers(1, 64))
def test_halves_add_up_and_exactness_is_zero(told, block):
    summed = errors(told, block)
    total = sum(abs(each.error) for each in told) / sum(each.prompt for each in told)
    assert summed.mae == pytest.approx(100 * total)
    exact = [Guess(each.prompt, each.actual, each.actual) for each in told]
    assert (errors(exact, block).mae, errors(exact, block).off) == (0, 0)


def test_every_key_of_the_grid_is_a_figure():
    summed = [errors([Guess(100, 40, 50)], block=16)]
    scores = {"tokens": summed, "llm_d_router": summed}
    figures = (*scored(scores, "_agent"), *counted(scores, "_agent"))
    keys = {figure.key for figure in figures}
    assert {"mae_tokens_agent_pct", "off_llm_d_router_agent_pct", "requests_agent"} <= keys
    assert {key for _, row in grid("t", scores, "_agent").rows for key in row} <= keys
