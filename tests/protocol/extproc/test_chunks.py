"""A response of ten thousand chunks comes out as it went in, and its usage is found."""

import gzip
import json
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.request import Usage
from epp.protocol.extproc.messages import (
    CHUNK_BYTES,
    BodyMode,
    BodyReply,
    Chunk,
    Modes,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
)
from tests.protocol.extproc.conversation import CHAT, OK, chat_body, exchange

COUNT = 10_000
USAGE = Usage(31, 10_000, 16)
REPORT = {
    "prompt_tokens": 31,
    "completion_tokens": 10_000,
    "prompt_tokens_details": {"cached_tokens": 16},
}
TEXTS = (" token", "grüße 😀", 'he said \\"usage\\": {', "a\\nb", '\\"usage\\"', "{}[],:")
JSON_HEAD = OK | {"content-type": "application/json"}


def events(end, sizes=None):
    """A stream of events, with what ends a line."""
    made = []
    for number in range(COUNT):
        text = TEXTS[number % len(TEXTS)] + "x" * (sizes[number % len(sizes)] if sizes else 0)
        made.append(f'data: {{"choices":[{{"delta":{{"content":"{text}"}}}}],"usage":null}}')
    made += ["data: " + json.dumps({"choices": [], "usage": REPORT}), "data: [DONE]"]
    return "".join(each + end * 2 for each in made).encode()


def document():
    text = "".join(TEXTS) * COUNT
    report = json.dumps(REPORT)
    return f'{{"choices":[{{"message":{{"content":"{text}"}}}}],"usage":{report}}}'.encode()


def deflated(data):
    """As a server that flushes after every so many bytes."""
    made = zlib.compressobj()
    parts = [
        made.compress(data[at : at + 5000]) + made.flush(zlib.Z_SYNC_FLUSH)
        for at in range(0, len(data), 5000)
    ]
    return b"".join([*parts, made.flush()])


BODIES = {
    "events": (OK, events("\n")),
    "events in CRLF": (OK, events("\r\n")),
    "events in CR": (OK, events("\r")),
    "huge events": (OK, events("\n", [0] * 999 + [3 * CHUNK_BYTES])),
    "a document": (JSON_HEAD, document()),
}
PACKED = {
    "gzip": gzip.compress(events("\n")),
    "deflate": deflated(events("\n")),
    "zstd": bytes(range(256)) * 500,  # whatever it is, to a picker it is noise
}


def cut(data, count, seed):
    """Cut into `count` pieces of all sizes, or fewer where there are not that many bytes."""
    places = {
        (number * 2654435761 * seed + number * number) % len(data) for number in range(1, count)
    }
    return [data[start:end] for start, end in pairwise(sorted({0, len(data)} | places))]


def converse(head, pieces, response=BodyMode.FULL_DUPLEX_STREAMED):
    """What the client gets, and the record of it."""
    machine = exchange()
    modes = Modes(BodyMode.FULL_DUPLEX_STREAMED, response)
    machine.receive(RequestHeaders(headers=CHAT, modes=modes), 0)
    machine.receive(RequestBody(body=chat_body(), end_of_stream=True), 0)
    machine.receive(ResponseHeaders(headers=head), 1)
    out, ends = [], []
    for place, piece in enumerate(pieces):
        last = place == len(pieces) - 1
        replies = machine.receive(ResponseBody(body=piece, end_of_stream=last), 2)
        out.append(passed(piece, replies))
        ends += [last and reply is replies[-1] for reply in replies]
    assert ends[-1]
    return b"".join(out), machine.stub.closed[0]


def passed(piece, replies):
    if isinstance(replies[0], BodyReply):
        assert len(replies) == 1
        assert replies[0].mutation.body is None
        return piece
    assert all(isinstance(reply, Chunk) and len(reply.body) <= CHUNK_BYTES for reply in replies)
    return b"".join(reply.body for reply in replies)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(("count", "seed"), [(COUNT, 1), (COUNT, 2), (4, 3)])
def test_byte_for_byte(name, count, seed):
    head, data = BODIES[name]
    out, record = converse(head, cut(data, count, seed))
    assert out == data
    assert record.usage == USAGE
    assert record.response_bytes == len(data)


@pytest.mark.parametrize("coding", PACKED)
def test_a_compressed_response_passes_unread(coding):
    data = PACKED[coding]
    out, record = converse(OK | {"content-encoding": coding}, cut(data, COUNT, 3))
    assert out == data
    assert record.usage is None


@pytest.mark.parametrize("coding", ["identity", "IDENTITY", ""])
def test_one_that_is_said_to_be_as_it_is_is_read(coding):
    head, data = BODIES["events"]
    out, record = converse(head | {"content-encoding": coding}, cut(data, COUNT, 3))
    assert out == data
    assert record.usage == USAGE


def test_streamed_chunks_are_acknowledged_and_read():
    head, data = BODIES["events"]
    out, record = converse(head, cut(data, COUNT, 4), BodyMode.STREAMED)
    assert out == data
    assert record.usage == USAGE


END = events("\n")[-400:]


@settings(max_examples=200)
@given(st.lists(st.integers(0, len(END)), max_size=12), st.sampled_from(["\n", "\r\n"]))
def test_usage_may_be_cut_anywhere(places, end):
    data = END.replace(b"\n", end.encode())
    edges = sorted({0, len(data), *(min(place, len(data)) for place in places)})
    pieces = [data[start:end] for start, end in pairwise(edges)]
    out, record = converse(OK, pieces)
    assert out == data
    assert record.usage == USAGE


def test_usage_is_found_wherever_one_cut_is():
    start = END.index(b'"usage"', 50)
    for place in range(start - 3, len(END)):
        assert converse(OK, [END[:place], END[place:]])[1].usage == USAGE, place


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("text/plain", False),
        ("text/html", False),
        ("application/octet-stream", False),
        ("", False),
    ],
)
def test_usage_is_believed_in_json_only(kind, found):
    data = json.dumps({"choices": [], "usage": REPORT}).encode()
    _, record = converse({":status": "200", "content-type": kind}, [data])
    assert record.usage == (USAGE if found else None)


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_usage_is_believed_at_the_top_only(kind):
    arguments = {"usage": {"prompt_tokens": 1 << 20, "completion_tokens": 1 << 20}}
    call = {"function": {"name": "f", "arguments": arguments}}
    for key in ("delta", "message"):
        body = {"choices": [{key: {"tool_calls": [call]}}], "metadata": arguments}
        data = json.dumps(body).encode()
        if kind == "text/event-stream":
            data = b"data: " + data + b"\n\n"
        _, record = converse({":status": "200", "content-type": kind}, [data])
        assert record.usage is None
