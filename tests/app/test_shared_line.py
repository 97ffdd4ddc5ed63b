"""A replica tells the others what goes next in its line: soon after a change, and again."""

import asyncio
from collections.abc import Sequence

import pytest

from epp.app.replicas.shared_line import SharedLine
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.line import Line
from epp.protocol.replicas.facts import AnyFact, WaitingFact
from tests.model.rig import Rig
from tests.strategies import request


class LateLoop(asyncio.SelectorEventLoop):
    """Has a time come at once, as uvloop has one that is over: its handle says no time."""

    def call_at(self, when, callback, *args, context=None):  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)


@pytest.fixture
def loop():
    with asyncio.Runner(loop_factory=LateLoop) as runner:
        yield runner


def held(rig, name):
    asked = request(name, [1, 2, 3])
    return HeldRequest(asked, rig.fleet.quote(asked, 0.0), 0.0, until=9.0, deadline=9.0)


def test_changes_that_follow_each_other_are_told_at_once(loop):
    rig, line = Rig(1), Line(ageing=0.05)
    told: list[Sequence[AnyFact]] = []
    SharedLine(line, told.append, lambda: rig.now)

    async def play():
        first, second = held(rig, "a"), held(rig, "b")
        line.add(first)
        line.add(second)
        await asyncio.sleep(0)
        line.remove(first)
        line.remove(second)
        await asyncio.sleep(0)

    loop.run(play())
    (first,), (last,) = told
    assert isinstance(first, WaitingFact)
    assert isinstance(last, WaitingFact)
    assert (len(first.heads), len(last.heads)) == (1, 0)
