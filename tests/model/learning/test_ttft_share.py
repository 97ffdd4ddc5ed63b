"""The share of first tokens in the time of responses: its mean, its default, and odd responses."""

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
    share = TtftShare()
    share.learn(1.0, 2.0, 15.0)
    share.learn(0.2, 2.0, 5.0)
    assert share.value == pytest.approx((15 * 1.0 + 5 * 0.2) / 40)


def test_a_change_is_followed():
    before = learned(*[(1.0, 2.0)] * 500)
    assert before.value == pytest.approx(0.5)
    assert learned(*[(0.02, 2.0)] * 1000, of=before).value == pytest.approx(0.01, rel=0.4)


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
