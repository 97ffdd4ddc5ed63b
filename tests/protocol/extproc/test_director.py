"""A decision that is made later, in whatever order its maker and its waiter come."""

import pytest

from epp.errors import Overloaded
from epp.model.decision import Decision
from epp.protocol.extproc.director import PendingDecision
from tests.protocol.extproc.conversation import POD

DECISION = Decision(endpoints=(POD,))


@pytest.fixture
def pending():
    return PendingDecision()


@pytest.mark.parametrize("outcome", [DECISION, Overloaded("full"), ZeroDivisionError()])
@pytest.mark.parametrize("waited_for", [False, True])
def test_the_outcome_is_delivered_once_in_either_order(pending, outcome, waited_for):
    heard: list[object] = []
    if waited_for:
        pending.when_decided(heard.append)
        assert heard == []
    pending.decided(outcome)
    if not waited_for:
        pending.when_decided(heard.append)
    assert heard == [outcome]


def test_a_second_decision_is_an_error(pending):
    heard: list[object] = []
    pending.when_decided(heard.append)
    pending.decided(DECISION)
    with pytest.raises(RuntimeError, match="once"):
        pending.decided(Overloaded("too late"))
    assert heard == [DECISION]


@pytest.mark.parametrize("first", [False, True])
def test_the_maker_is_notified_of_a_cancellation_once(pending, first):
    cancelled: list[bool] = []
    if first:
        pending.when_cancelled(lambda: cancelled.append(True))
    pending.cancel()
    pending.cancel()
    if not first:
        pending.when_cancelled(lambda: cancelled.append(True))
    assert cancelled == [True]
    assert pending.cancelled


def test_a_decision_after_a_cancellation_is_delivered(pending):
    heard: list[object] = []
    pending.when_decided(heard.append)
    pending.cancel()
    pending.decided(DECISION)
    assert heard == [DECISION]


def test_a_maker_may_decide_when_it_is_cancelled(pending):
    heard: list[object] = []
    gone = Overloaded("gone")
    pending.when_decided(heard.append)
    pending.when_cancelled(lambda: pending.decided(gone))
    pending.cancel()
    assert heard == [gone]


def test_a_cancellation_after_the_decision_has_no_effect(pending):
    cancelled: list[bool] = []
    pending.when_cancelled(lambda: cancelled.append(True))
    pending.decided(DECISION)
    pending.cancel()
    assert cancelled == []
    assert not pending.cancelled
