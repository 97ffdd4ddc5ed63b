"""The same requests, over ext_proc and in process: the same endpoints, and the same state after."""

import asyncio
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inprocess.twins import AsEnvoy, InProcess, Request, play, settled

EVENTS, JSON = "text/event-stream", "application/json"
TOPICS = st.integers(1, 4)
ASKED = st.fixed_dictionaries(
    {
        "topic": TOPICS,
        "length": st.sampled_from([3, 60, 400, 4000]),
        "api": st.sampled_from(["chat", "ids"]),
        "stream": st.booleans(),
        "x_llm_d_inference_fairness_id": st.sampled_from(["x", "y"]),
    }
)
NUMBER = st.integers(0, 7)
OPERATION = st.one_of(
    st.tuples(st.just("begin"), ASKED),
    st.tuples(st.just("begin"), ASKED),
    st.tuples(st.just("wait"), st.floats(0.001, 5)),
    st.tuples(st.just("finish"), NUMBER, st.integers(0, 800)),
    st.tuples(st.just("stream"), NUMBER),
    st.tuples(st.just("fail"), NUMBER, st.sampled_from([429, 500, 502, 503])),
    st.tuples(st.just("leave"), NUMBER),
)
SMALL = 600
"""Blocks of a cache in which few of the longest prompts have room at once."""


class Pair:
    """Both pickers, and the requests that both were asked."""

    def __init__(self):
        self.loop: Any = asyncio.get_running_loop()
        self.envoy = AsEnvoy(self.loop.time)
        self.inside = InProcess(self.loop.time)
        self.open = []

    async def load(self, blocks):
        await self.envoy.load(blocks)
        await self.inside.load(blocks)

    def taken(self, number):
        """Take out one of the open requests that were decided on."""
        decided = [each for each in self.open if "10." in self.envoy.picked(each[1])]
        if not decided:
            return None
        chosen = decided[number % len(decided)]
        self.open.remove(chosen)
        return chosen

    async def do(self, what, *how):
        await getattr(self, what)(*how)
        await settled()
        for _, exchange, begun in self.open:
            assert self.envoy.picked(exchange) == self.inside.picked(begun)
        refused = [each for each in self.open if each[1].record.error is not None]
        self.open = [each for each in self.open if each not in refused]

    def compare(self):
        both = zip_longest(self.envoy.state(), self.inside.state())
        assert [(one, other) for one, other in both if one != other] == []

    async def begin(self, asked):
        request = Request.of(**asked) if isinstance(asked, dict) else asked
        self.open.append((request, self.envoy.begin(request), self.inside.begin(request)))

    async def wait(self, seconds):
        self.loop.now += seconds

    async def stream(self, number):
        """Have a response begin: the head, and the first pieces."""
        if found := self.taken(number):
            request, exchange, (pick, _) = found
            if exchange.record.status is None:
                kind = EVENTS if request.stream else JSON
                self.envoy.head(exchange, 200, kind)
                pick.answered(200, {"Content-Type": kind})
            for piece in request.answer(9, 0)[:-1]:
                self.envoy.piece(exchange, piece, end=False)
                assert pick.feed(piece) == piece
            self.open.append(found)

    async def finish(self, number, cached):
        if found := self.taken(number):
            request, exchange, (pick, _) = found
            decision = exchange.record.decision
            if exchange.record.status is None:
                self.envoy.head(exchange, 200, EVENTS if request.stream else JSON)
            *pieces, last = request.answer(decision.prompt_tokens, cached)
            for piece in pieces:
                self.envoy.piece(exchange, piece, end=False)
                pick.feed(piece)
            self.envoy.piece(exchange, last, end=True)
            pick.finished(last)
            await pick.__aexit__(None, None, None)

    async def fail(self, number, status):
        if found := self.taken(number):
            _, exchange, (pick, _) = found
            if exchange.record.status is None:
                self.envoy.head(exchange, status, JSON, end=True)
                pick.failed(status)
                await pick.__aexit__(None, None, None)
            else:
                await self.gone(exchange, pick)

    async def gone(self, exchange, pick):
        """Have the connection to the model server break off."""
        exchange.cancelled(self.loop.time())
        error = ConnectionResetError()
        await pick.__aexit__(type(error), error, None)

    async def leave(self, number):
        if self.open:
            _, exchange, begun = self.open.pop(number % len(self.open))
            self.envoy.leave(exchange)
            await self.inside.leave(begun)

    async def end(self):
        while self.open:
            await self.do("leave", 0)
        for each in (self.envoy, self.inside):
            await each.core.director.stop()


def run(operations, blocks):
    async def both():
        pair = Pair()
        await pair.load(blocks)
        for what, *how in operations:
            await pair.do(what, *how)
            pair.compare()
        # What both believe of the caches and of speed shows in what the next requests would cost.
        for topic in (1, 2, 3, 4):
            await pair.do("begin", Request.of(topic, 400))
        pair.compare()
        await pair.end()
        pair.compare()
        assert not pair.inside.context.picks
        assert not pair.inside.core.fleet.in_flight

    play(both())


@settings(max_examples=60)
@given(st.lists(OPERATION, max_size=16), st.sampled_from([SMALL, 35_000]))
def test_both_choose_and_learn_the_same(operations, blocks):
    run(operations, blocks)


def test_requests_that_wait_for_room_go_to_the_same_endpoints():
    async def waiting():
        pair = Pair()
        await pair.load(SMALL)
        for topic in range(1, 9):
            await pair.do("begin", Request.of(topic, 4000, stream=True))
        assert [pair.envoy.held(), pair.inside.held()] == [5, 5]
        for operation in [("finish", 0, 0)] * 3 + [("leave", 4), ("wait", 0.5), ("fail", 0, 503)]:
            await pair.do(*operation)
        pair.compare()
        assert [pair.envoy.held(), pair.inside.held()] == [0, 0]
        await pair.end()

    play(waiting())


@pytest.mark.parametrize("body", [b" ", b"{", b"[]", b'{"messages": 5}'])
def test_what_is_refused_is_refused_with_the_same_error(body):
    request = Request("chat", body, {}, stream=False)
    run([("begin", request)], SMALL)
