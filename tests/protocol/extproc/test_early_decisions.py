"""Requests that are decided on before their end, read in turns, or refused by their headers."""

import json

import pytest

from epp.errors import Overloaded
from epp.model.decision import Decision
from epp.protocol.bodies.request_json import LONGEST_PROMPT
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.messages import (
    BodyMode,
    HeadersReply,
    Modes,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
)
from epp.protocol.extproc.record import Outcome
from epp.protocol.extproc.step import Wants
from tests.native.built import needs
from tests.protocol.extproc.conversation import (
    CHAT,
    OK,
    POD,
    Stub,
    body,
    chat_body,
    error_of,
    exchange,
    headers,
    outcome,
    play,
)

pytestmark = needs("epp.protocol.bodies.body_reader", "bodies read as they arrive")

PIECE = 1 << 16
SIZE = LONGEST_PROMPT * 3
LONG = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "so it goes. " * (SIZE // 12)}], "n": 1}
).encode()
REWRITE = {"x-llm-d-model-name-rewrite": "target"}
BUFFERED = Modes(request=BodyMode.BUFFERED, response=BodyMode.NONE)


def pieces(data, size=PIECE):
    return [
        RequestBody(body=data[at : at + size], end_of_stream=at + size >= len(data))
        for at in range(0, len(data), size)
    ]


def ask_until_decided(machine, data, **more):
    """Send pieces until the director is asked; return the replies and what was not sent yet."""
    machine.receive(headers(**more), 0)
    upward, replies = pieces(data), []
    while not machine.stub.requests:
        replies = machine.receive(upward.pop(0), 1)
    return replies, upward


def test_a_long_prompt_is_decided_on_before_its_end():
    machine = exchange()
    replies, upward = ask_until_decided(machine, LONG)
    assert LONGEST_PROMPT < machine.record.request_bytes < LONGEST_PROMPT + 2 * PIECE
    assert len(machine.stub.requests[0].prompts[0].data) == LONGEST_PROMPT
    for message in upward:
        while machine.wants() is Wants.ROOM:
            replies += machine.proceed(1)
        replies += machine.receive(message, 1)
        assert machine.exchange.held_bytes < 2 * PIECE
    while machine.wants() is Wants.ROOM:
        replies += machine.proceed(1)
    seen = outcome(replies)
    assert (seen.request == LONG, seen.request_ended, seen.destination) == (True, True, POD.target)
    play(machine, [ResponseHeaders(headers=OK), ResponseBody(body=b"x", end_of_stream=True)])
    assert machine.record.outcome is Outcome.COMPLETED


def ask_to_the_end(machine, data, **more):
    """Send all pieces; return what came of them, and that nothing did before the last."""
    upward = pieces(data)
    machine.receive(headers(**more), 0)
    for message in upward[:-1]:
        assert machine.receive(message, 1) == []
        assert machine.record.decision is None
    replies = machine.receive(upward[-1], 1)
    while machine.wants() is Wants.ROOM:
        replies += machine.proceed(1)
    return outcome(replies)


LATE = [b"", b',"model":"m"', b',"\\u006dodel" : "m","x":{"model":"m"}', b',"priority":"-100"']


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("told", [True, False])
def test_another_models_name_waits_for_the_end(told, late):
    data = LONG[:-1] + late + b"}"
    more = {"content-length": str(len(data))} if told else {}
    seen = ask_to_the_end(exchange(), data, **REWRITE, **more)
    assert json.loads(seen.request) == json.loads(data) | {"model": "target"}
    assert seen.set_headers["content-length"] == str(len(seen.request))


@pytest.mark.parametrize("late", LATE)
def test_a_priority_waits_for_the_end(late):
    data = LONG[:-1] + late + b"}"
    seen = ask_to_the_end(exchange(propagate_priority=True), data)
    assert json.loads(seen.request) == json.loads(data) | {"priority": 0}


def test_a_model_that_stays_waits_for_nothing():
    machine = exchange()
    _, upward = ask_until_decided(machine, LONG, **{"x-llm-d-model-name-rewrite": "m"})
    assert upward


def test_a_model_that_comes_last_is_waited_for():
    fields = json.loads(LONG)
    late = json.dumps({key: fields[key] for key in ("messages", "n", "model")}).encode()
    machine = exchange()
    _, upward = ask_until_decided(machine, late)
    assert upward == []
    assert machine.stub.requests[0].model == "m"


def test_a_picture_does_not_end_a_prompt():
    picture = {"type": "image_url", "image_url": {"url": "data:" + "A" * SIZE}}
    data = chat_body(messages=[{"role": "user", "content": [picture]}])
    _, upward = ask_until_decided(exchange(), data)
    assert upward == []


def test_a_tokenizer_gets_no_body_without_its_end():
    machine = exchange(keep_body=True)
    ask_until_decided(machine, LONG)
    assert machine.stub.requests[0].body == b""


def test_a_decision_that_comes_later_finds_what_came_meanwhile():
    machine = exchange(Stub(PendingDecision()))
    _, upward = ask_until_decided(machine, LONG)
    assert machine.wants() is Wants.DECISION
    for message in upward:
        assert machine.receive(message, 1) == []
    assert machine.exchange.held_bytes == len(LONG)
    replies = machine.resume(Decision(endpoints=(POD,)), 2)
    while machine.wants() is Wants.ROOM:
        replies += machine.proceed(2)
    assert outcome(replies).request == LONG


def test_a_limit_holds_for_what_follows_a_decision():
    machine = exchange(max_body_bytes=LONGEST_PROMPT * 2)
    _, upward = ask_until_decided(machine, LONG)
    replies = play(machine, upward)
    assert outcome(replies).error == 413
    assert machine.record.outcome is Outcome.ABORTED
    assert machine.stub.kinds == ["Aborted"]


def test_a_long_message_is_read_in_turns():
    machine = exchange()
    machine.receive(RequestHeaders(headers=CHAT, modes=BUFFERED), 0)
    assert machine.receive(body(LONG), 1) == []
    turns = 0
    replies = []
    while machine.wants() is Wants.TURN:
        assert not machine.stub.requests
        assert machine.exchange.held_bytes == len(LONG)
        replies = machine.proceed(1)
        turns += 1
    assert turns == len(LONG) // (1 << 20) + 1
    assert outcome(replies).destination == POD.target
    assert machine.exchange.held_bytes == 0


def test_a_half_close_waits_for_what_is_read():
    machine = exchange()
    machine.receive(headers(), 0)
    machine.receive(body(LONG), 1)
    machine.half_closed(1)
    replies = []
    while machine.wants() in {Wants.TURN, Wants.ROOM}:
        replies += machine.proceed(1)
    assert outcome(replies).request == LONG
    assert machine.record.outcome is Outcome.UNOBSERVED


def test_what_is_no_json_is_refused_in_its_turn():
    machine = exchange()
    machine.receive(headers(), 0)
    assert machine.receive(body(b'{"model" "m"' + LONG), 1) == []
    status, said, _ = error_of(machine.proceed(1))
    assert (status, said["message"]) == (400, "the body is not valid JSON (byte 9)")


def test_a_reset_while_a_body_is_read_ends_it():
    machine = exchange()
    machine.receive(headers(), 0)
    machine.receive(body(LONG), 1)
    machine.cancelled(1)
    assert machine.proceed(2) == []
    assert (machine.stub.requests, machine.record.outcome) == ([], Outcome.ABORTED)


@pytest.mark.parametrize("length", ["101", "9" * 5000])
def test_a_length_over_the_limit_is_refused_at_once(length):
    machine = exchange(max_body_bytes=100)
    status, said, _ = error_of(machine.receive(headers(**{"content-length": length}), 0))
    assert status == 413
    assert "larger than 100 bytes" in said["message"]


@pytest.mark.parametrize("length", ["100", "-5", "", "²", "ten"])
def test_other_lengths_are_the_bodys_own_affair(length):
    machine = exchange(max_body_bytes=100)
    assert machine.receive(headers(**{"content-length": length}), 0) == []


@pytest.mark.parametrize("coding", ["gzip", "br", "x" * 500])
def test_a_compressed_body_is_refused_with_415(coding):
    machine = exchange()
    status, said, more = error_of(machine.receive(headers(**{"content-encoding": coding}), 0))
    assert (status, more["x-warmpick-reason"]) == (415, "unsupported-content-encoding")
    assert more["accept-encoding"] == "identity"
    assert coding[:20] in said["message"]
    assert len(said["message"]) < 120


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
def test_a_body_that_is_said_to_be_as_it_is_is_read(coding):
    machine = exchange()
    assert machine.receive(headers(**{"content-encoding": coding}), 0) == []


@pytest.mark.parametrize("status", ["²", "99999", "", "abc", "20", "9" * 5000])
def test_a_status_that_is_no_number_is_none(status):
    machine = exchange()
    play(machine, [headers(), body(chat_body()), ResponseHeaders(headers={":status": status})])
    assert machine.record.status == 0
    assert machine.record.error is None


def test_what_a_client_must_still_send_is_known():
    machine = exchange()
    assert machine.exchange.awaits_request
    machine.receive(headers(), 0)
    assert machine.wants() is Wants.REST
    machine.receive(body(b'{"model"', end=False), 1)
    assert (machine.exchange.awaits_request, machine.exchange.held_bytes) == (True, 8)
    replies = machine.exchange.fail(Overloaded("too much", reason="held-bytes"), 2).replies
    assert error_of(replies)[0] == 429
    assert (machine.exchange.awaits_request, machine.exchange.held_bytes) == (False, 0)


def test_the_header_reply_comes_first():
    replies, _ = ask_until_decided(exchange(), LONG)
    assert isinstance(replies[0], HeadersReply)


def test_a_model_of_the_wrong_type_is_named_as_such_in_a_long_body():
    machine = exchange()
    replies = machine.receive(headers(), 0)
    upward = pieces(LONG.replace(b'"model": "m"', b'"model": 5'))
    while not replies:
        replies = machine.receive(upward.pop(0), 1)
    status, said, _ = error_of(replies)
    assert status == 400
    assert said["message"] == "`model` must be a string"
    assert not machine.stub.requests
