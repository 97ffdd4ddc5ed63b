"""Ids of stored responses, in paths, in bodies and in answers, however these are cut."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from epp.protocol.response_ids import ResponseIdReader, id_in_path, previous_id

LONGEST = "x" * 256

PATHS = {
    "/v1/responses/resp_1": "resp_1",
    "/v1/responses/resp_1?stream=true&starting_after=3": "resp_1",
    "/v1/responses/resp_1/": "resp_1",
    "/v1/responses/resp_1/cancel": "resp_1",
    "/v1/responses/resp_1/input_items?limit=2": "resp_1",
    "/openai/v1/responses/resp_a-b.c:d": "resp_a-b.c:d",
    f"/v1/responses/{LONGEST}": LONGEST,
    f"/v1/responses/{LONGEST}x": "",
    "/v1/responses": "",
    "/v1/responses/": "",
    "/v1/responses//cancel": "",
    "/v1/responses?previous=/responses/resp_1": "",
    "/v1/models/resp_1": "",
    "": "",
}


@pytest.mark.parametrize("path", PATHS)
def test_the_id_in_a_path(path):
    assert id_in_path(path) == PATHS[path]


BODIES = {
    '{"model":"m","previous_response_id":"resp_1","input":"hi"}': "resp_1",
    '{"previous_response_id" : \n "resp_1"}': "resp_1",
    '{"previous_response_id":"resp_1","previous_response_id":"resp_2"}': "resp_2",
    '{"previous_response_id":"resp_1","previous_response_id":null}': "",
    '{"previous_response_id":7}': "",
    '{"previous_response_id":null}': "",
    '{"previous_response_id":["resp_1"]}': "",
    '{"previous_response_id":{"id":"resp_1"}}': "",
    '{"previous_response_id":""}': "",
    '{"previous_response_id":"resp 1"}': "",
    '{"previous_response_id":"resp_\\u0031"}': "",
    '{"previous_response_id":"resp_1': "",
    '{"previous_response_id"': "",
    f'{{"previous_response_id":"{LONGEST}"}}': LONGEST,
    f'{{"previous_response_id":"{LONGEST}x"}}': "",
    f'{{"previous_response_id":"{"x" * (1 << 20)}"}}': "",
    json.dumps({"input": 'say "previous_response_id":"resp_1"'}): "",
    '{"input":"hi"}': "",
    "": "",
}


@pytest.mark.parametrize("body", BODIES)
def test_the_id_in_a_body(body):
    assert previous_id(body.encode()) == BODIES[body]


VLLM = {
    "id": "resp_1",
    "created_at": 1,
    "instructions": None,
    "metadata": {"id": "resp_2"},
    "output": [{"id": "msg_1", "type": "message"}],
}
LLAMA = {"completed_at": 3, "created_at": 1.5, "error": None, "model": 'a "name"', "id": "resp_1"}
WHOLE = {
    "vLLM": (json.dumps(VLLM), "resp_1"),
    "llama.cpp": (json.dumps(LLAMA, indent=1), "resp_1"),
    "the message's comes first": (json.dumps({"output": [{"id": "msg_1"}], "id": "resp_1"}), ""),
    "within another object": (json.dumps({"error": {"id": "resp_1"}}), ""),
    "a number": ('{"id":7,"created_at":1}', ""),
    "endless": ('{"id":"' + "x" * 10_000, ""),
    "too late": (json.dumps({"model": "m" * 4096, "id": "resp_1"}), ""),
    "text": ('"id":"resp_1"', ""),
    "a list": ('[{"id":"resp_1"}]', ""),
    "nothing": ("", ""),
}


def event(name, **more):
    return f"event: {name}\ndata: {json.dumps({'type': name, **more})}\n\n"


CREATED = event("response.created", sequence_number=0, response=VLLM)
STREAMS = {
    "vLLM": (CREATED + event("response.in_progress", response=VLLM), "resp_1"),
    "the response first": (f"data: {json.dumps({'response': VLLM, 'type': 'x'})}\n\n", "resp_1"),
    "a comment first": (": here I am\n\n" + CREATED, "resp_1"),
    "no event shows one": (event("response.output_text.delta", delta="hi") * 200, ""),
    "the response is no object": (event("response.created", response="resp_1"), ""),
    "the item's": (event("response.output_item.added", item={"id": "msg_1"}), ""),
}
ANSWERS = {
    **{f"{name}, whole": (text, found, False) for name, (text, found) in WHOLE.items()},
    **{f"{name}, streamed": (text, found, True) for name, (text, found) in STREAMS.items()},
}


def read(data, size, *, streaming):
    """Feed a body in pieces of a size until the reader is done; return what it found."""
    reader, found = ResponseIdReader(streaming=streaming), []
    for at in range(0, len(data), size):
        if reader.done:
            break
        found.append(reader.feed(data[at : at + size]))
    return [each for each in found if each]


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
@pytest.mark.parametrize("name", ANSWERS)
def test_the_id_in_an_answer(name, size):
    text, expected, streaming = ANSWERS[name]
    assert read(text.encode(), size, streaming=streaming) == ([expected] if expected else [])


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_that_never_shows_an_id_is_not_read_to_its_end(streaming):
    reader = ResponseIdReader(streaming=streaming)
    for _ in range(3):
        assert reader.feed(b'{"a":1,' * 100) == ""
    assert reader.done


@given(st.lists(st.binary()), st.booleans())
def test_no_bytes_raise(pieces, streaming):
    reader = ResponseIdReader(streaming=streaming)
    for piece in pieces:
        reader.feed(piece)
    assert previous_id(b"".join(pieces)) == ""


@given(st.text(), st.integers(0, 60), st.binary(max_size=3))
def test_what_is_put_into_a_body_raises_nothing(path, at, piece):
    body = b'{"previous_response_id":"resp_1","input":"how are you?"}'
    assert previous_id(body[:at] + piece + body[at:]).isascii()
    assert len(id_in_path(path)) <= 256
