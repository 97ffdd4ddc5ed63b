"""A replica tells the others what goes next in its line: soon after a change, and again."""

import asyncio
from collections.abc import Sequence
from math import inf

import pytest

from epp.app.replicas.shared_line import SharedLine
from epp.model.endpoint import EndpointId
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.line import Line
from epp.policy.flow.orders import (
    EdfOrderingPolicy,
    FcfsOrderingPolicy,
    LeastPrefillOrder,
    SloDeadlineOrderingPolicy,
)
from epp.policy.flow.settings import BandLimits
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


def waiting(now, since, deadline, ttft_by, seconds):
    """Have a request wait, with times relative to now."""
    asked = request("r", [1, 2, 3])
    quote = Rig(1).quote("r", [1, 2, 3])
    times = {"until": inf, "deadline": now + deadline, "ttft_by": now + ttft_by}
    found = HeldRequest(asked, quote, now + since, **times)
    found.endpoint_id, found.seconds = EndpointId("default/pod-0"), seconds
    return found


@pytest.mark.parametrize(
    ("order", "field"),
    [
        (FcfsOrderingPolicy(), 0),
        (EdfOrderingPolicy(), 1),
        (SloDeadlineOrderingPolicy(), 2),
        (LeastPrefillOrder(0.0), 3),
    ],
)
@pytest.mark.parametrize("tells", [True, False])
def test_a_line_is_in_one_order_at_replicas_whose_clocks_differ(loop, order, field, tells):
    here, there = [Line(0.05, lambda _: BandLimits(order=order)) for _ in range(2)]
    other = SharedLine(there, lambda _: None, lambda: 5.0)
    told: list[Sequence[AnyFact]] = []
    SharedLine(here, told.append, lambda: 1000.0)
    plain = (-3.0, inf, inf, 3.0)

    def with_one(value):
        return [value if place == field else each for place, each in enumerate(plain)]

    async def play():
        here.add(waiting(1000.0, *(with_one(2.0) if tells else plain)))
        await asyncio.sleep(0)

    loop.run(play())
    (fact,) = told[0]
    assert isinstance(fact, WaitingFact)
    other.receive(7, fact)
    value = 2.0 if tells else plain[field]
    earlier, later = value - 1.0 if value < inf else 99.0, value + 1.0
    yields = [
        there.yields(waiting(5.0, *with_one(each)), EndpointId("default/pod-0"), 5.0)
        for each in (earlier, later)
    ]
    assert yields == [False, value < inf]
