"""Requests that wait on the event loop: decided when there is room, and none is left undecided."""

import asyncio

import pytest

from epp.app.flow.held_requests import HeldRequests
from epp.errors import ShuttingDown
from epp.model.decision import Decision
from epp.model.request import RequestId
from epp.model.request_events import FirstToken
from epp.policy.flow.held import HeldRequest
from tests.policy.flow.flow_rig import FlowRig
from tests.strategies import request


class Waiting:
    """A pod that is busy, the pending decisions of requests that wait for it, and all faults."""

    def __init__(self, on_release=None, **settings):
        self.faults: list[tuple[str, type[BaseException]]] = []
        self.rig = FlowRig(pods=1, **settings)
        self.rig.come("first", 20_000)
        self.gone: list[str] = []
        self.held = HeldRequests(
            self.rig.flow,
            lambda: self.rig.now,
            on_release or (lambda asked, *_: self.gone.append(asked.id)),
            lambda source, error: self.faults.append((source, type(error))),
        )
        self.decided: dict[str, object] = {}

    def come(self, identity):
        found = self.rig.flow.route(request(identity, self.rig.words(100)), self.rig.now)
        assert isinstance(found, HeldRequest)
        pending = self.held.hold(found)
        pending.when_decided(lambda outcome: self.decided.update({identity: outcome}))
        return pending

    async def make_room(self):
        """Begin the first response a little later, and have the loop look for room."""
        self.rig.wait(0.03)
        self.rig.apply(FirstToken(RequestId("first")))
        await looked()


async def looked():
    """Return when the loop has looked for room after an event, and told what it decided."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.fixture
async def waiting():
    made = Waiting()
    yield made
    assert made.faults == []


async def test_an_event_that_makes_room_decides(waiting):
    waiting.come("a")
    await waiting.make_room()
    decision = waiting.decided["a"]
    assert isinstance(decision, Decision)
    assert decision.waited == pytest.approx(0.03)
    assert (waiting.gone, len(waiting.held._pending)) == (["a"], 0)
    assert sum(waiting.held.waits.counts) == sum(waiting.held.cycles.counts) == 1


async def test_an_event_when_a_look_for_room_is_due_makes_it_one_look(waiting):
    found = waiting.rig.flow.route(request("a", waiting.rig.words(100)), waiting.rig.now)
    waiting.rig.wait(1.0)
    waiting.held.hold(found)
    await waiting.make_room()
    assert sum(waiting.held.waits.counts) == sum(waiting.held.cycles.counts) == 1


async def test_a_client_that_leaves_is_counted_and_no_longer_waits(waiting):
    pending = waiting.come("a")
    waiting.rig.wait(0.5)
    pending.cancel()
    assert len(waiting.held._pending) == waiting.rig.flow.line.requests == 0
    assert waiting.rig.outcomes == [("a", "EvictedContextCancelled", 0.5)]
    assert waiting.decided == {}
    await waiting.make_room()
    assert sum(waiting.held.cycles.counts) == 0  # nothing is looked for any more


async def test_one_whose_time_is_up_goes_without_an_event():
    waiting = Waiting(most_seconds=0.01)
    decided = asyncio.get_running_loop().create_future()
    waiting.come("a").when_decided(decided.set_result)
    waiting.rig.wait(0.01)
    async with asyncio.timeout(30):
        assert isinstance(await decided, Decision)
    assert (waiting.gone, waiting.faults) == (["a"], [])


async def test_a_stop_refuses_all_that_wait(waiting):
    waiting.come("a")
    waiting.come("b")
    waiting.rig.wait(1.5)
    waiting.rig.say("pod-0")  # the loop would look for room next
    waiting.held.stop()
    await waiting.make_room()
    assert sum(waiting.held.cycles.counts) == 0
    assert len(waiting.held._pending) == waiting.rig.flow.line.requests == 0
    for error in waiting.decided.values():
        assert isinstance(error, ShuttingDown)
        assert (error.status, error.dropped_reason) == (503, "rejected-shutting-down")
        assert error.waited == 1.5
    assert len(waiting.decided) == 2
    assert waiting.held.refused == {"shutting-down": 2}
    assert [outcome for _, outcome, _ in waiting.rig.outcomes] == ["EvictedOther"] * 2


def failing(_outcome):
    raise KeyError("nobody")


def not_recorded(*_):
    raise KeyError("nowhere")


async def test_one_that_cannot_be_told_its_decision_does_not_keep_the_others():
    waiting = Waiting()
    waiting.come("a").when_decided(failing)
    waiting.come("b")
    await waiting.make_room()
    assert isinstance(waiting.decided["b"], Decision)
    assert (waiting.gone, len(waiting.held._pending)) == (["a", "b"], 0)
    assert waiting.faults == [("flow-control", KeyError)]


async def test_one_that_a_look_for_room_lost_is_answered():
    waiting = Waiting()
    line = waiting.rig.flow.line

    def fails_once():
        line.on_change = None
        raise KeyError("nobody")

    waiting.come("a")
    waiting.come("b")
    line.on_change = fails_once
    await waiting.make_room()
    assert waiting.faults == [("flow-control", KeyError)]
    assert isinstance(waiting.decided["a"], KeyError)
    waiting.rig.say("pod-0")
    await looked()
    assert isinstance(waiting.decided["b"], Decision)
    outcomes = [each[:2] for each in waiting.rig.outcomes]
    assert outcomes == [("a", "EvictedOther"), ("b", "Dispatched")]
    assert (waiting.gone, len(waiting.held._pending)) == (["b"], 0)


async def test_one_whose_decision_cannot_be_recorded_goes_all_the_same():
    waiting = Waiting(on_release=not_recorded)
    waiting.come("a")
    await waiting.make_room()
    assert isinstance(waiting.decided["a"], Decision)
    assert waiting.faults == [("flow-control", KeyError)]
