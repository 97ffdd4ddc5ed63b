"""A decision that is made later, in whatever order its maker and its waiter come."""

import pytest

from epp.errors import Overloaded
from epp.model.request import Decision
from epp.protocol.extproc.director import PendingDecision
from tests.protocol.extproc.conversation import POD

DECISION = Decision(endpoints=(POD,))


@pytest.fixture
def pending():
    return PendingDecision()


@pytest.mark.parametrize("outcome", [DECISION, Overloaded("full"), ZeroDivisionError()])
@pytest.mark.parametrize("waited_for", [False, True])
def test_it_is_heard_once_whoever_comes_first(pending, outcome, waited_for):
    heard: list[object] = []
    if waited_for:
        pending.when_decided(heard.append)
        assert heard == []
    pending.decided(outcome)
    if not waited_for:
        pending.when_decided(heard.append)
    assert heard == [outcome]


def test_it_is_made_once(pending):
    heard: list[object] = []
    pending.when_decided(heard.append)
    pending.decided(DECISION)
    with pytest.raises(RuntimeError, match="once"):
        pending.decided(Overloaded("too late"))
    assert heard == [DECISION]


@pytest.mark.parametrize("first", [False, True])
def test_its_maker_hears_once_that_nobody_waits(pending, first):
    cancelled: list[bool] = []
    if first:
        pending.when_cancelled(lambda: cancelled.append(True))
    pending.cancel()
    pending.cancel()
    if not first:
        pending.when_cancelled(lambda: cancelled.append(True))
    assert cancelled == [True]
    assert pending.cancelled


def test_what_is_decided_all_the_same_is_heard(pending):
    heard: list[object] = []
    pending.when_decided(heard.append)
    pending.cancel()
    pending.decided(DECISION)
    assert heard == [DECISION]


def test_a_maker_that_answers_a_cancellation_is_heard(pending):
    heard: list[object] = []
    gone = Overloaded("gone")
    pending.when_decided(heard.append)
    pending.when_cancelled(lambda: pending.decided(gone))
    pending.cancel()
    assert heard == [gone]


def test_once_decided_there_is_nothing_to_cancel(pending):
    cancelled: list[bool] = []
    pending.when_cancelled(lambda: cancelled.append(True))
    pending.decided(DECISION)
    pending.cancel()
    assert cancelled == []
    assert not pending.cancelled
