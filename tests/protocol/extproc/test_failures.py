"""Which responses count as failures of the endpoint, and which do not."""

import json

import pytest

from epp._pb import engine_api_pb2
from epp.model.endpoint import Target
from epp.model.request import Usage
from epp.model.request_events import Aborted, Failure, Finished
from epp.protocol.bodies.apis import OPENAI, VLLM_GRPC, VLLM_HTTP, ApiTable
from epp.protocol.extproc.messages import (
    BodyMode,
    Modes,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from epp.protocol.extproc.record import Outcome
from epp.values import replaced
from tests.protocol.extproc.conversation import (
    CHAT,
    OK,
    SSE,
    body,
    chat_body,
    exchange,
    play,
)

ALL = ApiTable((OPENAI, VLLM_GRPC, VLLM_HTTP), passthrough=True)
JSON = {":status": "200", "content-type": "application/json"}
GRPC = {":status": "200", "content-type": "application/grpc"}
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
PROMPT = engine_api_pb2.GenerateRequest(request_id="1", text="hello").SerializeToString()
FRAME = b"\0" + len(PROMPT).to_bytes(4, "big") + PROMPT
FRAMED = ResponseBody(body=b"\0\0\0\0\0")


def ended(*response, path=CHAT[":path"], data=None, mode=BodyMode.STREAMED):
    """Play a request, and its response; return the event at its end."""
    machine = exchange(apis=ALL)
    modes = Modes(BodyMode.FULL_DUPLEX_STREAMED, mode)
    bare = data == b""
    named = {**CHAT, ":path": path, ":method": "OPTIONS" if bare else "POST"}
    asked = RequestHeaders(headers=named, modes=modes, end_of_stream=bare)
    sent = [] if bare else [body(chat_body() if data is None else data)]
    play(machine, [asked, *sent, *response])
    machine.cancelled(9)
    assert machine.stub.closed[0].finished_at is not None
    return machine.stub.events[-1]


def head(headers=OK, *, end=True, **more):
    return ResponseHeaders(headers=headers | more, end_of_stream=end)


def status(number, **more):
    return head({":status": str(number), **more})


@pytest.mark.parametrize(
    ("response", "failure"),
    [
        (status(500), Failure.ERROR),
        (status(501), Failure.ERROR),
        (status(502), Failure.GATEWAY),
        (status(503), Failure.GATEWAY),
        (status(504), Failure.ERROR),
        (status(503, **{"x-envoy-overloaded": "true"}), None),
        (status(503, **{"retry-after": "1"}), Failure.BUSY),
        (status(502, **{"retry-after": "1"}), Failure.GATEWAY),
        (status(400), None),
        (status(404), None),
        (status(408), None),
        (status(429), Failure.BUSY),
        (status(499), None),
    ],
    ids=lambda each: each.headers[":status"] if isinstance(each, ResponseHeaders) else "",
)
def test_errors_count_by_their_status(response, failure):
    event = ended(response)
    assert isinstance(event, Aborted)
    assert (event.refused, event.failure) == (True, failure)


@pytest.mark.parametrize("text", ["", "20", "2000", "2_0", "-20", "\u00b200"])
def test_a_status_that_is_not_three_digits_says_nothing(text):
    machine = exchange()
    play(machine, [RequestHeaders(headers=CHAT), body(chat_body()), head({":status": text})])
    assert machine.record.status == 0


@pytest.mark.parametrize("number", [500, 502, 503, 504])
@pytest.mark.parametrize("served", [None, Target("10.0.0.1:8000")])
def test_a_failure_says_whether_the_proxy_named_who_served(number, served):
    response = ResponseHeaders(headers={":status": str(number)}, end_of_stream=True, served=served)
    assert ended(response).served is (served is not None)


def test_an_error_counts_whatever_becomes_of_its_body():
    event = ended(head({":status": "503"}, end=False), ResponseBody(body=b"no"))
    assert isinstance(event, Aborted)
    assert event.failure is Failure.GATEWAY


@pytest.mark.parametrize(
    "response",
    [
        [head(OK)],
        [head(JSON)],
        [head(OK, end=False), ResponseBody(body=b"", end_of_stream=True)],
        [head(OK, end=False), ResponseBody(body=b""), ResponseTrailers()],
    ],
    ids=["stream", "json", "empty body", "trailers"],
)
def test_an_empty_answer_is_a_failure(response):
    event = ended(*response)
    assert isinstance(event, Aborted)
    assert (event.refused, event.failure) == (True, Failure.EMPTY)


def test_an_empty_answer_may_name_its_failure():
    # Envoy's own answers are gRPC's if the request has that content type, whatever its path.
    assert ended(head(GRPC, **{"grpc-status": "14"})).failure is Failure.GATEWAY


@pytest.mark.parametrize(
    ("response", "more"),
    [
        ([head(OK, end=False), ResponseBody(body=SSE[0], end_of_stream=True)], {}),
        ([head({":status": "204"})], {}),
        ([head(JSON)], {"path": "/v1/files"}),
        ([head(JSON)], {"path": "/v1/embeddings"}),
        ([head(JSON)], {"data": b""}),
        ([head(OK, end=False)], {"mode": BodyMode.NONE}),
        ([head(OK, end=False), ResponseTrailers()], {"mode": BodyMode.NONE}),
        ([head(JSON, end=False), ResponseTrailers()], {"path": "/v1/files"}),
        ([head(GRPC)], {"path": GENERATE, "data": FRAME}),
        ([head(GRPC, **{"grpc-status": "0"})], {"path": GENERATE, "data": FRAME}),
        ([head(GRPC, end=False), FRAMED, ResponseTrailers()], {"path": GENERATE, "data": FRAME}),
    ],
    ids=[
        *("stream", "204", "other path", "embeddings", "no request body", "not shown"),
        *("not shown, trailers", "other path, trailers", "gRPC", "gRPC OK", "gRPC, a message"),
    ],
)
def test_other_good_answers_are_none(response, more):
    assert isinstance(ended(*response, **more), Finished)


@pytest.mark.parametrize(("code", "failure"), [("14", Failure.GATEWAY), ("13", Failure.ERROR)])
def test_grpc_says_it_in_its_own_status(code, failure):
    event = ended(head(GRPC, **{"grpc-status": code}), path=GENERATE, data=FRAME)
    assert isinstance(event, Aborted)
    assert (event.refused, event.failure) == (True, failure)


def test_what_envoy_did_not_try_to_send_is_no_failure_over_grpc():
    # Envoy 1.40 with a full circuit breaker: trailers alone, with both.
    overloaded = {"grpc-status": "14", "x-envoy-overloaded": "true"}
    event = ended(head(GRPC, **overloaded), path=GENERATE, data=FRAME)
    assert isinstance(event, Aborted)
    assert (event.refused, event.failure) == (True, None)


@pytest.mark.parametrize(
    ("response", "more"),
    [
        ([status(307, location="/v1/completions")], {}),
        ([head(GRPC, **{"grpc-status": "3"})], {"path": GENERATE, "data": FRAME}),
        ([head(GRPC, **{"grpc-status": "8"})], {"path": GENERATE, "data": FRAME}),
        ([head(GRPC, end=False), ResponseTrailers()], {"path": GENERATE, "data": FRAME}),
    ],
    ids=["redirect", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "no message"],
)
def test_what_computed_nothing_leaves_nothing_in_the_cache(response, more):
    event = ended(*response, **more)
    assert isinstance(event, Aborted)
    assert (event.refused, event.failure) == (True, None)


def in_stream(code):
    """vLLM's error in a stream, and the end that follows it."""
    error = {
        "message": "not \"code\": 500, 'code': 500",
        "type": "of it",
        "param": None,
        "code": code,
    }
    return f"data: {json.dumps({'error': error})}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def in_messages(code):
    """What vLLM's Messages API makes of any such error."""
    quoted = f"input_value={{'error': {{'message': 'Gr...am': None, 'code': {code}}}}}, input_type"
    message = f"2 validation errors for ChatCompletionStreamResponse\\nmodel [{quoted}=dict]"
    return (
        'event: error\ndata: {"type":"error","error":{"type":"internal_error",'
        f'"message":"{message}"}}}}\n\n'
    ).encode()


LLAMA = b'data: {"error":{"code":500,"message":"no","type":"server_error"}}\n\n'


@pytest.mark.parametrize(
    ("pieces", "path", "failure"),
    [
        ([in_stream(500), DONE], "/v1/chat/completions", Failure.ERROR),
        ([in_stream(503) + DONE], "/v1/completions", Failure.ERROR),
        ([in_stream(400), DONE], "/v1/chat/completions", None),
        ([b": keep-alive\n\n", in_stream(500), DONE], "/v1/chat/completions", Failure.ERROR),
        ([LLAMA], "/v1/chat/completions", Failure.ERROR),
        ([in_messages(500)], "/v1/messages", Failure.ERROR),
        ([in_messages(400)], "/v1/messages", None),
    ],
)
def test_a_stream_that_begins_with_an_error_is_one(pieces, path, failure):
    machine = exchange()
    asked = RequestHeaders(headers={**CHAT, ":path": path})
    sent = chat_body(prompt="hello", max_tokens=1)
    answered = [ResponseBody(body=each) for each in pieces]
    end = ResponseBody(body=b"", end_of_stream=True)
    play(machine, [asked, body(sent), head(OK, end=False), *answered, end])
    (event,) = machine.stub.events  # no first token
    assert isinstance(event, Aborted)
    assert (event.refused, event.failure) == (True, failure)
    assert machine.record.first_byte_at is None


def test_an_error_behind_output_breaks_a_stream_off_and_is_no_failure():
    response = [head(OK, end=False), *(ResponseBody(body=each) for each in (*SSE, in_stream(500)))]
    event = ended(*response, ResponseBody(body=DONE, end_of_stream=True))
    assert isinstance(event, Finished)


@pytest.mark.parametrize(
    "response", [[], [head(end=False)], [head(end=False), ResponseBody(body=SSE[0])]]
)
def test_a_client_that_leaves_is_no_failure(response):
    event = ended(*response)
    assert isinstance(event, Aborted)
    assert (event.refused, event.failure) == (False, None)


def test_the_outcome_is_that_of_the_exchange():
    machine = exchange()
    play(machine, [RequestHeaders(headers=CHAT), body(chat_body()), head(OK)])
    assert machine.stub.closed[0].outcome is Outcome.COMPLETED
    assert machine.stub.closed[0].failure is Failure.EMPTY


def framed(**response):
    """A message of an answer."""
    message = engine_api_pb2.GenerateResponse(**response).SerializeToString()
    return ResponseBody(body=b"\0" + len(message).to_bytes(4, "big") + message)


CHUNK = framed(chunk=engine_api_pb2.StreamChunk(prompt_tokens=9, completion_tokens=1))
COMPLETE = framed(complete=engine_api_pb2.Complete(prompt_tokens=9, completion_tokens=2))


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_over_grpc_has_a_first_token(stream):
    prompt = engine_api_pb2.GenerateRequest(text="hello", stream=stream).SerializeToString()
    frame = b"\0" + len(prompt).to_bytes(4, "big") + prompt
    machine = exchange(apis=ALL)
    asked = RequestHeaders(headers=CHAT | {":path": GENERATE})
    play(machine, [asked, body(frame), head(GRPC, end=False), CHUNK])
    assert machine.stub.kinds == ["FirstToken"] * stream


@pytest.mark.parametrize(
    ("pieces", "event"),
    [
        ([CHUNK, COMPLETE], Finished),
        ([COMPLETE], Finished),
        ([CHUNK], Aborted),
        ([CHUNK, replaced(COMPLETE, body=COMPLETE.body[:-1])], Aborted),
        ([replaced(CHUNK, body=b"\0\0\0\0\2\xff\xff")], Aborted),
        ([], Aborted),
    ],
)
def test_a_response_over_grpc_is_whole_with_its_last_message(pieces, event):
    # Envoy tells its end by trailers, and shows those with `response_trailer_mode: SEND` alone.
    seen = ended(head(GRPC, end=False), *pieces, path=GENERATE, data=FRAME)
    assert type(seen) is event
    if event is Finished:
        assert seen.usage == Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=0)
