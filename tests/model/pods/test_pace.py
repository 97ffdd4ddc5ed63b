"""What a token of a response takes, at one endpoint and in its class."""

import pytest

from epp.model.pods.pace import Pace, PaceClass


def learned(*responses):
    """Return a class that has learned from responses: their tokens, and the seconds they took."""
    of_class = PaceClass()
    for tokens, seconds in responses:
        of_class.learn_tokens(tokens, seconds, 1.0)
    return of_class


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        ([], 0.02),
        ([(7, 1.0), (100, 0.0)], 0.02),  # too short to tell
        ([(101, 5.0)], 0.05),
        ([(11, 0.1)], 0.01),
    ],
)
def test_the_tokens_after_the_first_are_timed(responses, expected):
    assert Pace(learned(*responses)).seconds_per_token == pytest.approx(expected)


def test_of_a_slow_endpoint_tokens_take_longer():
    slow, other = Pace(of_class := learned((101, 5.0))), Pace(of_class)
    for _ in range(20):
        slow.decode_slowness.learn(0.1, 0.2, 0.0)
        other.decode_slowness.learn(0.1, 0.1, 0.0)
    assert slow.seconds_per_token > 1.5 * other.seconds_per_token
    assert other.seconds_per_token == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize(("tokens", "seconds"), [(100, 300.0), (8, 300.0), (200, 3600.0)])
def test_one_that_a_client_reads_slowly_makes_no_others_slow(tokens, seconds):
    of_class = learned(*[(101, 0.5 + 0.1 * (number % 3)) for number in range(100)])
    usual = of_class.seconds_per_token.value
    of_class.learn_tokens(tokens, seconds, 1.0)
    assert of_class.seconds_per_token.value == pytest.approx(usual + 9 * usual / 50)


def test_nor_does_the_first_of_all():
    assert learned((8, 300.0)).seconds_per_token.value == 1.0
    slow = learned(*[(11, 50.0)] * 200)  # as an engine is that is slow
    assert slow.seconds_per_token.value == pytest.approx(5.0, rel=0.01)
