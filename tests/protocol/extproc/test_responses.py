"""Stored responses (OpenAI's Responses API): the ids that requests name, and those of answers."""

import json

import pytest

from epp.model.request import Usage
from epp.model.request_events import Finished, FirstToken, ResponseNamed, Unobserved
from epp.protocol.extproc.messages import (
    BodyMode,
    Message,
    Modes,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
)
from epp.protocol.extproc.step import Wants
from tests.protocol.extproc.conversation import (
    DUPLEX,
    OK,
    chat_body,
    exchange,
    play,
    request_of,
)

JSON = {":status": "200", "content-type": "application/json"}
USAGE = {"input_tokens": 900, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 800}}
WHOLE = json.dumps({"id": "resp_1", "object": "response", "usage": USAGE}).encode()
CREATED = b'event: response.created\ndata: {"response":{"id":"resp_1","status":"queued"}}\n\n'
ADDED = b'event: response.output_item.added\ndata: {"item":{"id":"msg_1"}}\n\n'
LEAVABLE = Modes(DUPLEX, BodyMode.STREAMED)


def ask(asked=None, path="/v1/responses", method="POST", **settings):
    """Play a request whose body is an object, bytes as they are, or nothing; return the exchange"""
    machine = exchange(**settings)
    data = json.dumps(asked).encode() if isinstance(asked, dict) else asked
    head = {":method": method, ":path": path}
    messages: list[Message] = [
        RequestHeaders(headers=head, modes=LEAVABLE, end_of_stream=data is None)
    ]
    if data is not None:
        messages.append(RequestBody(body=data, end_of_stream=True))
    play(machine, messages)
    return machine


def named_by(asked=None, path="/v1/responses", method="POST"):
    return ask(asked, path, method).stub.requests[0].response_id


def follow_up(previous):
    return {"model": "m", "input": "and then?", "previous_response_id": previous}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1?stream=true"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
    ],
)
def test_a_path_names_the_response_that_a_request_is_about(method, path):
    assert named_by(path=path, method=method) == "resp_1"
    assert named_by(b"{}", path, "POST") == "resp_1"


def test_a_gateway_may_have_rewritten_the_path():
    head = {":method": "GET", ":path": "/", "x-original-path": "/v1/responses/resp_1"}
    assert request_of(RequestHeaders(headers=head, end_of_stream=True)).response_id == "resp_1"


@pytest.mark.parametrize(
    ("previous", "named"),
    [("resp_1", "resp_1"), (7, ""), (None, ""), ({"id": "resp_1"}, ""), ("x" * 100_000, "")],
)
def test_a_body_names_the_response_that_it_goes_on_from(previous, named):
    assert named_by(follow_up(previous)) == named


def test_only_the_responses_api_goes_on_from_a_response():
    body = chat_body(previous_response_id="resp_1")
    assert named_by(body, "/v1/chat/completions") == ""
    assert named_by(body, "/v1/completions/resp_1") == ""


def test_a_body_that_is_read_in_turns_names_it_too():
    long = follow_up("resp_1") | {"input": "word " * 600_000}
    assert named_by(long) == "resp_1"


def test_of_a_prompt_that_is_decided_on_before_its_end_no_more_is_read():
    assert named_by(follow_up("resp_1") | {"input": "word " * 900_000}) == ""


def test_the_request_that_waits_still_names_it():
    machine = ask(follow_up("resp_1"))
    assert machine.stub.requests[0].without_text().response_id == "resp_1"


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(("head", "answer"), [(JSON, WHOLE), (OK, CREATED + ADDED)])
def test_an_answer_tells_its_id_once(head, answer, size):
    machine = ask({"model": "m", "input": "hi"})
    machine.receive(ResponseHeaders(headers=head), 2)
    for at in range(0, len(answer), size):
        machine.receive(ResponseBody(body=answer[at : at + size]), 3)
    told = [each for each in machine.stub.events if isinstance(each, ResponseNamed)]
    assert told == [ResponseNamed(machine.record.id, "resp_1")]


def test_a_stream_that_is_left_early_has_told_its_id():
    machine = ask({"model": "m", "input": "hi", "stream": True}, end_early=True)
    machine.receive(ResponseHeaders(headers=OK), 2)
    machine.receive(ResponseBody(body=CREATED), 3)
    assert machine.wants() is Wants.NEXT
    machine.receive(ResponseBody(body=ADDED), 4)
    assert machine.wants() is Wants.END
    own = machine.record.id
    told = [ResponseNamed(own, "resp_1"), FirstToken(own), Unobserved(own, begun=True)]
    assert machine.stub.events == told


@pytest.mark.parametrize(
    ("path", "head"),
    [
        ("/v1/chat/completions", JSON),
        ("/v1/responses", JSON | {":status": "404"}),
        ("/v1/responses", JSON | {"content-encoding": "gzip"}),
    ],
)
def test_what_is_no_answer_of_the_api_tells_none(path, head):
    asked = {"model": "m", "input": "hi", "messages": [{"role": "user", "content": "hi"}]}
    machine = ask(asked, path)
    machine.receive(ResponseHeaders(headers=head), 2)
    machine.receive(ResponseBody(body=WHOLE, end_of_stream=True), 3)
    assert "ResponseNamed" not in machine.stub.kinds


def usage_learned(asked):
    machine = ask(asked)
    machine.receive(ResponseHeaders(headers=JSON), 2)
    machine.receive(ResponseBody(body=WHOLE, end_of_stream=True), 3)
    assert machine.record.usage == Usage(900, 7, 800)
    (end,) = [each for each in machine.stub.events if isinstance(each, Finished)]
    return end.usage


def test_the_tokens_of_turns_that_the_server_had_stored_are_not_the_prompts():
    assert usage_learned({"model": "m", "input": "hi"}) == Usage(900, 7, 800)
    assert usage_learned(follow_up("resp_0")) == Usage(0, 7, None)
