"""Feedback: trust falls with broken promises and rises again; two empty hands are a restart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.learning.trust import DOUBT, PredictionTrust, Verdict

BLOCK = 16


def reporting():
    """Return the feedback of an endpoint that is known to report what it has cached."""
    feedback = PredictionTrust()
    feedback.judge(320, 320, BLOCK)
    return feedback


@pytest.mark.parametrize(
    ("predicted", "actual", "verdict"),
    [
        (0, 0, Verdict.HELD),
        (0, 640, Verdict.HELD),
        (640, 640, Verdict.HELD),
        (640, 656, Verdict.HELD),
        (640, 528, Verdict.HELD),
        (640, 496, Verdict.MISSED),
        (32, 16, Verdict.HELD),
        (48, 16, Verdict.MISSED),
        (640, 0, Verdict.MISSED),
    ],
)
def test_one_report(predicted, actual, verdict):
    assert reporting().judge(predicted, actual, BLOCK) is verdict


def test_two_large_promises_broken_in_a_row_are_a_restart():
    feedback = reporting()
    assert feedback.judge(640, 0, BLOCK) is Verdict.MISSED
    assert feedback.judge(640, 16, BLOCK) is Verdict.RESTARTED
    assert feedback.trust == 1.0


def test_where_an_engine_evicts_early_three_are_a_restart_or_two_that_promised_more():
    little = reporting()
    assert [little.judge(100, 0, BLOCK, early=300) for _ in range(3)] == [
        Verdict.MISSED,
        Verdict.MISSED,
        Verdict.RESTARTED,
    ]
    much = reporting()
    assert much.judge(200, 0, BLOCK, early=300) is Verdict.MISSED
    assert much.judge(101, 0, BLOCK, early=300) is Verdict.RESTARTED


def test_two_that_promised_no_more_than_an_engine_evicts_early_may_be_old_blocks():
    feedback = reporting()
    for _ in range(10):
        assert feedback.judge(200, 0, BLOCK, early=300) is Verdict.MISSED
        assert feedback.judge(100, 0, BLOCK, early=300) is Verdict.MISSED
        assert feedback.judge(640, 640, BLOCK, early=300) is Verdict.HELD
        assert not feedback.suspicious


def test_requests_without_a_promise_between_do_not_hide_a_restart():
    feedback = reporting()
    assert feedback.judge(640, 0, BLOCK) is Verdict.MISSED
    assert feedback.judge(0, 0, BLOCK) is Verdict.HELD
    assert feedback.judge(640, 0, BLOCK) is Verdict.RESTARTED


def test_what_came_since_does_not_hide_a_restart():
    feedback = reporting()
    assert feedback.judge(640, 0, BLOCK) is Verdict.MISSED
    assert feedback.judge(400, 400, BLOCK, fresh=400) is Verdict.HELD
    assert feedback.judge(640, 400, BLOCK, fresh=400) is Verdict.RESTARTED


def test_finding_more_than_came_since_proves_that_there_was_no_restart():
    feedback = reporting()
    assert feedback.judge(640, 0, BLOCK) is Verdict.MISSED
    assert feedback.judge(640, 320, BLOCK, fresh=100) is Verdict.MISSED
    assert not feedback.suspicious
    assert feedback.judge(640, 320, BLOCK) is Verdict.MISSED


def test_broken_promises_that_held_in_part_are_no_restart():
    feedback = reporting()
    assert [feedback.judge(640, 320, BLOCK) for _ in range(5)] == [Verdict.MISSED] * 5


@pytest.mark.parametrize(("predicted", "block"), [(48, 16), (112, 64)])
def test_small_promises_prove_nothing(predicted, block):
    feedback = reporting()
    assert all(feedback.judge(predicted, 0, block) is not Verdict.RESTARTED for _ in range(5))


def test_an_endpoint_that_only_ever_says_zero_is_distrusted_not_restarted():
    feedback = PredictionTrust()
    verdicts = {feedback.judge(640, 0, BLOCK) for _ in range(20)}
    assert verdicts == {Verdict.MISSED}
    assert feedback.trust < 0.2


def test_trust_falls_faster_than_it_rises_and_recovers():
    feedback = reporting()
    feedback.judge(640, 320, BLOCK)
    low = feedback.trust
    assert low == pytest.approx(0.95)
    feedback.judge(640, 640, BLOCK)
    assert low < feedback.trust < 1.0
    for _ in range(60):
        feedback.judge(640, 640, BLOCK)
    assert feedback.trust > 0.99


def test_an_endpoint_whose_hits_do_not_come_is_not_believed():
    """Each miss in a row weighs 0.1 more than the one before, up to 0.4."""
    feedback = PredictionTrust()
    left = 1000.0
    for weight in (0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4):
        feedback.judge(640, 0, BLOCK)
        left *= 1 - weight
    assert feedback.discount(1000) == pytest.approx(left, abs=1)


def test_one_that_loses_all_it_gets_again_and_again_is_not_believed():
    """Once a hit has come, what is lost is a restart; what is lost again before one is not."""
    feedback = reporting()
    assert [feedback.judge(640, 0, BLOCK) for _ in range(2)][-1] is Verdict.RESTARTED
    assert feedback.trust == 1.0
    for _ in range(3):
        assert [feedback.judge(640, 0, BLOCK) for _ in range(2)][-1] is Verdict.RESTARTED
    assert feedback.trust < 0.2
    feedback.restarted()  # its process says so
    assert feedback.trust == 1.0


def test_one_that_says_when_it_started_is_never_taken_to_have_restarted():
    """A model with a sliding window keeps of a prompt what only those find that continue it."""
    feedback = reporting()
    feedback.judge(640, 0, BLOCK)
    feedback.reports_restarts = True
    verdicts = [feedback.judge(640, actual, BLOCK) for actual in (0, 0, 0, 640, 0, 0, 0)]
    assert Verdict.RESTARTED not in verdicts
    assert verdicts.count(Verdict.MISSED) == 6


@pytest.mark.parametrize("block", [16, 64])
def test_the_last_block_of_a_short_hit_says_nothing_of_long_ones(block):
    # vLLM 0.32 with EAGLE or MTP, SGLang with pages: a block less than the whole of what is there.
    feedback = reporting()
    for turn in range(100):
        predicted = 2000 if turn % 4 == 3 else block
        feedback.judge(predicted, predicted - block, block)
    assert feedback.discount(2000) == 2000


@pytest.mark.parametrize("block", [128, 528])  # vLLM on NPUs; hybrid models
@pytest.mark.parametrize("blocks", [2, 10])
def test_nor_does_a_large_one_where_longer_hits_lack_it_too(block, blocks):
    feedback = reporting()
    for turn in range(100):
        predicted = block if turn % 4 else blocks * block
        feedback.judge(predicted, predicted - block, block)
    assert feedback.discount(5280) == 5280
    feedback.judge(blocks * block, blocks * block, block)  # no more: it drafts nothing now
    for _ in range(10):
        feedback.judge(block, 0, block)
    assert feedback.trust < DOUBT


@pytest.mark.parametrize(("predicted", "block"), [(2 * BLOCK, BLOCK), (128, 128)])
def test_more_than_a_block_or_a_large_one_costs_trust(predicted, block):
    feedback = reporting()
    for _ in range(10):
        feedback.judge(predicted, 0, block)
    assert feedback.trust < DOUBT


def test_small_doubts_discount_nothing():
    feedback = reporting()
    assert feedback.discount(1000) == 1000
    feedback.judge(640, 480, BLOCK)
    assert feedback.discount(1000) == 1000
    for _ in range(30):
        feedback.judge(640, 320, BLOCK)
    assert feedback.discount(1000) == pytest.approx(500, abs=50)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=50))
def test_trust_is_a_share_whatever_is_reported(reports):
    feedback = PredictionTrust()
    for predicted, actual in reports:
        feedback.judge(predicted, actual, BLOCK)
        assert 0.0 <= feedback.trust <= 1.0
        assert 0 <= feedback.discount(predicted) <= predicted
