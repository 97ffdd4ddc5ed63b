"""The share of first tokens in the time of responses: its mean, its default, and odd responses."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.learning.ttft_share import DEFAULT_TTFT_SHARE, TtftShare

SECONDS = st.floats(0, allow_infinity=False, allow_nan=False, max_value=1e9)


def learned(*responses, of=None):
    share = of or TtftShare()
    for ttft, end_to_end in responses:
        share.learn(ttft, end_to_end)
    return share


def test_it_is_a_ratio_of_means_once_sixteen_responses_were_observed():
    few = [(0.1, 10.0)] * 10 + [(1.5, 2.0)] * 5
    assert learned(*few).value == DEFAULT_TTFT_SHARE
    assert learned(*few, (0.5, 6.0)).value == pytest.approx((10 * 0.1 + 5 * 1.5 + 0.5) / 116)


def test_one_response_stands_for_as_many_as_it_was_drawn_from():
    share, seen = TtftShare(), []
    for _ in range(2000):
        share.learn(1.0, 2.0, 15.0)
        share.learn(0.2, 2.0, 5.0)
        seen.append(share.value)
    assert sum(seen[500:]) / 1500 == pytest.approx((15 * 1.0 + 5 * 0.2) / 40, rel=0.01)


@pytest.mark.parametrize("weight", [1.0, 32.0, 100.0])
def test_it_is_of_two_hundred_responses_however_many_they_stand_for(weight):
    share, draw, seen = TtftShare(), Random(0), []  # noqa: S311 (noise)
    for _ in range(4000):
        ttft = draw.lognormvariate(-2.4, 1.0)  # 0.15 on average
        share.learn(ttft, ttft + draw.lognormvariate(1.5, 0.5), weight)  # 5.1 more
        seen.append(share.value)
    tail = sorted(seen[400:])
    assert tail[len(tail) // 2] == pytest.approx(0.0286, rel=0.05)
    # Of n lognormal values the mean varies by sqrt((e - 1) / n), that of the last 200 by 0.065.
    assert tail[len(tail) // 20] > 0.0286 * (1 - 3 * 0.065)
    assert tail[-len(tail) // 20] < 0.0286 * (1 + 3 * 0.065)


def test_a_change_is_followed():
    before = learned(*[(1.0, 2.0)] * 500)
    assert before.value == pytest.approx(0.5)
    assert learned(*[(0.02, 2.0)] * 200, of=before).value == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize(
    "odd", [(0, 0), (0, 5.0), (-1.0, 5.0), (6.0, 5.0), (float("nan"), 1.0), (1.0, float("nan"))]
)
def test_responses_without_a_time_teach_nothing(odd):
    assert learned(*[(0.1, 1.0)] * 50, *[odd] * 50).value == pytest.approx(0.1)


@pytest.mark.parametrize("hangs", [(1e6, 1e6), (0.1, 1e6)])
def test_one_that_hangs_changes_little(hangs):
    assert learned(*[(0.1, 1.0)] * 200, hangs).value == pytest.approx(0.1, abs=0.05)


@given(st.lists(st.tuples(SECONDS, SECONDS, st.floats(1, 1000)), max_size=60))
def test_it_is_a_share_whatever_is_learned(responses):
    share = TtftShare()
    for response in responses:
        share.learn(*response)
    assert 0 <= share.value <= 1
