"""Where a conversation is cut, and what may overtake what, must not change its outcome."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.protocol.extproc.messages import (
    BodyMode,
    Message,
    Modes,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.step import Wants
from tests.protocol.extproc.conversation import (
    CHAT,
    OK,
    Outcome,
    chat_body,
    exchange,
    outcome,
    play,
    request_of,
)

REQUEST = chat_body(messages=[{"role": "user", "content": 'grüße 😀 "model": "m"'}])
USAGE = {
    "prompt_tokens": 31,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 16},
}
EVENTS = (
    {"model": "target", "choices": [{"delta": {"content": '"usage": {'}}], "usage": None},
    {"model": "target", "choices": [{"delta": {"content": "ok"}}]},
    {"model": "target", "choices": [], "usage": USAGE},
)
SSE = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in EVENTS)
SSE += b"data: [DONE]\n\n"
JSON = json.dumps({"id": "x", "model": "target", "choices": [], "usage": USAGE}).encode()
RESPONSES = {"text/event-stream": SSE, "application/json": JSON}
REWRITE = {"x-llm-d-model-name-rewrite": "target"}


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in at), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def request(pieces: Sequence[bytes], *, trailers: bool, path: str = "") -> list[Message]:
    head = RequestHeaders(headers=CHAT | REWRITE | ({":path": path} if path else {}))
    last = len(pieces) - 1
    bodies = [
        RequestBody(body=piece, end_of_stream=place == last and not trailers)
        for place, piece in enumerate(pieces)
    ]
    return [head, *bodies, *([RequestTrailers()] if trailers else [])]


def response(pieces: Sequence[bytes], kind: str, *, trailers: bool) -> list[Message]:
    head = ResponseHeaders(headers=OK | {"content-type": kind})
    last = len(pieces) - 1
    bodies = [
        ResponseBody(body=piece, end_of_stream=place == last and not trailers)
        for place, piece in enumerate(pieces)
    ]
    return [head, *bodies, *([ResponseTrailers()] if trailers else [])]


def facts(messages: list[Message]) -> tuple[Outcome, object]:
    machine = exchange()
    seen = outcome(play(machine, messages))
    seen.order = [each for each in seen.order if "Chunk" not in each]
    (record,) = machine.stub.closed
    return seen, what_counts(record)


def what_counts(record: RequestRecord) -> object:
    return (
        record.request,
        record.decision,
        record.outcome,
        record.usage,
        record.status,
        record.streaming,
        record.request_bytes,
        record.response_bytes,
    )


@pytest.mark.parametrize("kind", RESPONSES)
@pytest.mark.parametrize("trailers", [False, True])
def test_every_cut_of_either_body(kind, trailers):
    data = RESPONSES[kind]
    whole = facts(
        [*request([REQUEST], trailers=trailers), *response([data], kind, trailers=trailers)]
    )
    seen, _ = whole
    assert seen.request == REQUEST.replace(b'"model": "m", "me', b'"model": "target", "me')
    assert seen.response == data.replace(b'"model": "target"', b'"model": "m"')
    for place in range(len(REQUEST) + 1):
        parts = request(cut(REQUEST, [place]), trailers=trailers)
        assert facts([*parts, *response([data], kind, trailers=trailers)]) == whole, place
    for place in range(len(data) + 1):
        parts = response(cut(data, [place]), kind, trailers=trailers)
        assert facts([*request([REQUEST], trailers=trailers), *parts]) == whole, place


@given(
    kind=st.sampled_from(sorted(RESPONSES)),
    request_cuts=st.lists(st.integers(0, len(REQUEST)), max_size=8),
    response_cuts=st.lists(st.integers(0, len(SSE)), max_size=40),
    trailers=st.booleans(),
)
def test_any_cuts(kind, request_cuts, response_cuts, trailers):
    data = RESPONSES[kind]
    whole = [*request([REQUEST], trailers=trailers), *response([data], kind, trailers=trailers)]
    parts = request(cut(REQUEST, request_cuts), trailers=trailers)
    parts += response(cut(data, response_cuts), kind, trailers=trailers)
    assert facts(parts) == facts(whole)


@st.composite
def interleavings(draw: st.DrawFn) -> list[Message]:
    """A body that passes by, and a response that may overtake any part of it."""
    first, *upward = request(
        cut(REQUEST, draw(st.lists(st.integers(0, len(REQUEST)), max_size=5))),
        trailers=draw(st.booleans()),
        path="/tokenize",
    )
    head, *downward = response(
        cut(SSE, draw(st.lists(st.integers(0, len(SSE)), max_size=5))),
        "text/event-stream",
        trailers=draw(st.booleans()),
    )
    *downward, last = [head, *downward]
    order = draw(st.permutations([True] * len(upward) + [False] * len(downward)))
    sides = {True: iter(upward), False: iter(downward)}
    return [first, *(next(sides[side]) for side in order), last]


@given(interleavings())
def test_directions_do_not_wait_for_each_other(messages):
    upward = [each for each in messages if isinstance(each, RequestBody | RequestTrailers)]
    answers = ResponseHeaders | ResponseBody | ResponseTrailers
    downward = [each for each in messages if isinstance(each, answers)]
    seen, counted = facts(messages)
    plain, same = facts([messages[0], *upward, *downward])
    seen.order = plain.order = []
    assert (seen, counted) == (plain, same)
    assert (seen.request, seen.response) == (REQUEST, SSE)


@given(
    place=st.integers(0, 2),
    modes=st.sampled_from([Modes(), Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED)]),
)
def test_subset_counts_on_whichever_request_message_it_comes(place, modes):
    hints = [("10.0.0.1",) if place == number else None for number in range(3)]
    request = request_of(
        RequestHeaders(headers=CHAT, modes=modes, subset=hints[0]),
        RequestBody(body=REQUEST[:9], subset=hints[1]),
        RequestBody(body=REQUEST[9:], end_of_stream=True, subset=hints[2]),
    )
    assert request.subset == ("10.0.0.1",)


ANY = st.one_of(
    st.builds(
        RequestHeaders,
        headers=st.dictionaries(
            st.sampled_from([":method", ":path", "x-request-id", "content-type"]),
            st.sampled_from(["POST", "GET", "/v1/completions", "/x", "", "\udcff"]),
        ),
        end_of_stream=st.booleans(),
        modes=st.none() | st.builds(Modes, st.sampled_from(BodyMode), st.sampled_from(BodyMode)),
        subset=st.none() | st.just(()) | st.just(("1.2.3.4:5",)),
    ),
    st.builds(RequestBody, body=st.binary(max_size=40), end_of_stream=st.booleans()),
    st.builds(RequestTrailers),
    st.builds(
        ResponseHeaders,
        headers=st.dictionaries(
            st.sampled_from([":status", "content-type", "endpoint-load-metrics"]),
            st.text(max_size=20) | st.sampled_from(["200", "text/event-stream"]),
        ),
        end_of_stream=st.booleans(),
    ),
    st.builds(
        ResponseBody,
        body=st.binary(max_size=40) | st.sampled_from([b'"usage":{', b'{"model":"']),
        end_of_stream=st.booleans(),
    ),
    st.builds(ResponseTrailers),
)


@settings(max_examples=300)
@given(st.lists(ANY, max_size=12), st.booleans())
def test_nothing_that_is_sent_raises_and_every_exchange_closes_once(messages, half_close):
    machine = exchange()
    try:
        play(machine, messages)
    except UnicodeEncodeError as error:  # only text that no peer can send: lone surrogates
        assert "\udcff" in error.object  # noqa: PT017
    if half_close:
        machine.half_closed(98)
        machine.half_closed(99)
        assert machine.wants() is Wants.END
    machine.cancelled(100)
    assert len(machine.stub.closed) == 1
    ends = [kind for kind in machine.stub.kinds if kind in {"Finished", "Aborted", "Unobserved"}]
    assert len(ends) == (1 if machine.stub.closed[0].decision else 0)
