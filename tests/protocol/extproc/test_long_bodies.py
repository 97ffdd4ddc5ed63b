"""Bodies of requests that go on in more than one breath."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.decision import Decision
from epp.protocol.bodies.body_reader import BodyData
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.messages import (
    CHUNK_BYTES,
    STEP_BYTES,
    BodyMode,
    Chunk,
    HeadersReply,
    Modes,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    TrailersReply,
    next_chunks,
)
from epp.protocol.extproc.record import Outcome
from epp.protocol.extproc.step import Wants
from tests.protocol.extproc.conversation import (
    CHAT,
    OK,
    POD,
    Stub,
    chat_body,
    exchange,
    outcome,
)

WORDS = "so it goes on and on without end, it seems, to whoever waits for it\n"
LONG = chat_body(messages=[{"role": "user", "content": WORDS * 45_000}])
BREATH = 2 * STEP_BYTES
SIZES = [1 << 10, 16 << 10, CHUNK_BYTES, CHUNK_BYTES + 1, 200_000, 1 << 22]
REWRITE = {"x-llm-d-model-name-rewrite": "target"}


def cut(data, size):
    return [data[at : at + size] for at in range(0, len(data), size)]


def ask(machine, data, size, *, trailers=False, **more):
    """Send a request; the replies to its end."""
    replies = machine.receive(RequestHeaders(headers=CHAT | more), 0)
    pieces = cut(data, size)
    for place, piece in enumerate(pieces):
        assert replies == []
        end = place == len(pieces) - 1 and not trailers
        replies = read_on(machine, machine.receive(RequestBody(body=piece, end_of_stream=end), 1))
    return machine.receive(RequestTrailers(), 1) if trailers else replies


def read_on(machine, replies):
    """Give turns to a machine that reads a long piece."""
    while machine.wants() is Wants.TURN:
        assert replies == []
        replies = machine.proceed(1)
    return replies


def rest(machine):
    replies = []
    while machine.wants() is Wants.ROOM:
        said = machine.proceed(2)
        assert said
        assert sum(len(each.body) for each in said if isinstance(each, Chunk)) < BREATH
        replies += said
    return replies


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("trailers", [False, True])
def test_a_long_body_is_sent_on_in_order(size, trailers):
    machine = exchange()
    first = ask(machine, LONG, size, trailers=trailers)
    assert isinstance(first[0], HeadersReply)
    assert sum(len(each.body) for each in first[1:]) < BREATH
    assert machine.wants() is Wants.ROOM
    replies = first + rest(machine)
    seen = outcome(replies)
    assert seen.request == LONG
    assert seen.request_ended is not trailers
    assert isinstance(replies[-1], TrailersReply) is trailers
    assert machine.proceed(3) == []


def test_a_renamed_body_goes_on_as_the_other_does():
    machine = exchange()
    seen = outcome(ask(machine, LONG, 20_000, **REWRITE) + rest(machine))
    assert json.loads(seen.request) == {**json.loads(LONG), "model": "target"}
    assert seen.set_headers["content-length"] == str(len(seen.request))


@pytest.mark.parametrize("size", [16 << 10, 1 << 22])
def test_a_response_may_begin_before_the_request_is_through(size):
    machine = exchange()
    replies = ask(machine, LONG, size)
    replies += machine.receive(ResponseHeaders(headers=OK), 2)
    replies += machine.receive(ResponseBody(body=b"data: one\n\n"), 2)
    assert machine.wants() is Wants.ROOM
    replies += rest(machine)
    replies += machine.receive(ResponseBody(body=b"data: two\n\n", end_of_stream=True), 3)
    seen = outcome(replies)
    assert (seen.request, seen.response) == (LONG, b"data: one\n\ndata: two\n\n")
    assert machine.stub.closed[0].outcome is Outcome.COMPLETED


def test_a_half_closed_stream_still_gets_the_rest():
    machine = exchange()
    replies = ask(machine, LONG, 1 << 20)
    machine.half_closed(2)
    assert machine.stub.closed == []
    assert outcome(replies + rest(machine)).request == LONG
    assert machine.wants() is Wants.END
    assert machine.stub.closed[0].outcome is Outcome.UNOBSERVED


def test_a_reset_stream_gets_nothing():
    machine = exchange()
    ask(machine, LONG, 1 << 20)
    machine.cancelled(2)
    assert machine.proceed(3) == []
    assert machine.stub.closed[0].outcome is Outcome.ABORTED


def test_pieces_that_waited_for_a_decision_stay_in_order():
    machine = exchange(Stub(answer=PendingDecision()))
    machine.receive(RequestHeaders(headers=CHAT | {":path": "/tokenize"}), 0)
    pieces = cut(LONG, 300_000)
    for piece in pieces[:-2]:
        assert machine.receive(RequestBody(body=piece), 0) == []
    replies = machine.resume(Decision(endpoints=(POD,)), 1)
    assert machine.wants() is Wants.ROOM
    assert machine.receive(RequestBody(body=pieces[-2]), 2) == []
    assert machine.receive(RequestBody(body=pieces[-1], end_of_stream=True), 2) == []
    seen = outcome(replies + rest(machine))
    assert (seen.request, seen.request_ended) == (LONG, True)


def test_a_body_that_the_proxy_holds_is_not_repeated():
    machine = exchange()
    modes = Modes(BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED)
    replies = machine.receive(RequestHeaders(headers=CHAT, modes=modes), 0)
    replies += read_on(machine, machine.receive(RequestBody(body=LONG, end_of_stream=True), 0))
    assert outcome(replies).order == ["request HeadersReply", "request BodyReply"]
    assert machine.wants() is Wants.NEXT


def chunks_of(replies):
    made = [each for each in replies if isinstance(each, Chunk)]
    assert len(made) == len(replies)
    return made


@given(
    st.lists(st.tuples(st.integers(0, 3 * CHUNK_BYTES), st.booleans()), min_size=1, max_size=20),
    st.booleans(),
)
def test_chunks_of_any_pieces(sizes, last):
    numbers = b"".join(map(b"%07d ".__mod__, range(3 * CHUNK_BYTES // 8 + 1)))
    pieces: list[BodyData] = [
        memoryview(numbers)[:size] if view else numbers[:size] for size, view in sizes
    ]
    said, left = [], pieces
    while left:
        replies, left = next_chunks(left, last=last)
        said += chunks_of(replies)
    assert b"".join(each.body for each in said) == b"".join(pieces)
    assert all(len(each.body) <= CHUNK_BYTES for each in said)
    assert [each.end_of_stream for each in said] == [False] * (len(said) - 1) + [last]


def test_pieces_that_fit_are_not_copied():
    pieces: list[BodyData] = [bytes([number]) * (CHUNK_BYTES - 9) for number in range(3)]
    said = chunks_of(next_chunks(pieces, last=True)[0])
    assert [each.body is piece for each, piece in zip(said, pieces, strict=True)] == [True] * 3


def test_long_bodies_are_read():
    machine = exchange()
    ask(machine, LONG, 30_000)
    (prompt,) = machine.stub.requests[0].prompts
    assert prompt.data == b"\n<user>" + json.dumps(WORDS * 45_000).encode()
