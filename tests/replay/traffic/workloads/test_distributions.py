"""What is drawn has the mean and deviation that were published."""

import random
from statistics import mean, median, stdev

import pytest

from epp.replay.traffic.workloads.distributions import Distribution, fixed, lognormal

DRAWS = 40_000


def drawn(distribution):
    draw = random.Random(5)  # noqa: S311
    return [distribution.draw(draw) for _ in range(DRAWS)]


@pytest.mark.parametrize(
    ("distribution", "deviation"),
    [
        (Distribution("lognormal", 4000, 2500), 2500),
        (Distribution("normal", 300, 20), 20),
        (Distribution("exponential", 45_000, 35_000), 45_000),
        (Distribution("uniform", 4250, 0, 500, 8000), 7500 / 12**0.5),
        (fixed(7), 0),
    ],
)
def test_mean_and_deviation(distribution, deviation):
    values = drawn(distribution)
    assert mean(values) == pytest.approx(distribution.mean, rel=0.03)
    assert stdev(values) == pytest.approx(deviation, rel=0.05)


def test_two_modes_have_the_mean_and_deviation_together():
    values = drawn(Distribution("bimodal", 300, 850, 50))
    assert mean(values) == pytest.approx(300, rel=0.05)
    # Modes of 50, and 50 + (850^2 + 250^2) / 250 = 3,190; each is spread by a tenth.
    assert stdev(values) == pytest.approx(850, rel=0.05)
    assert not [value for value in values if 100 < value < 1500]


def test_a_lognormal_one_by_its_median():
    values = drawn(lognormal(5, 2))
    assert mean(values) == pytest.approx(5, rel=0.05)
    assert median(values) == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize("shape", ["bimodal", "exponential", "lognormal", "normal", "uniform"])
def test_nothing_is_drawn_outside_of_the_bounds(shape):
    values = drawn(Distribution(shape, 100, 300, 50, 120))
    assert min(values) >= 50
    assert max(values) <= 120


def test_a_number_of_tokens_is_at_least_one():
    draw = random.Random(1)  # noqa: S311
    assert {fixed(0).tokens(draw), Distribution("normal", -5, 1).tokens(draw)} == {1}
