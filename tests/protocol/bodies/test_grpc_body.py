"""Bodies over gRPC: bytes that are written by hand from the published messages, field by field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import MalformedRequest
from epp.model.request import Api, Prompt
from epp.protocol.bodies.body import Body
from epp.protocol.bodies.grpc_body import FrameRestorer, framed

# Protobuf: a key is the field's number times 8, plus 0 for a number and 2 for bytes.
IDS = b"\x12\x06" + b"\x12\x04\x01\xac\x02\x07"  # tokenized = 2 {input_ids = 2: 1, 300, 7}
REQUEST_ID = b"\x0a\x03abc"
SAMPLING = b"\x22\x02\x40\x32"  # sampling_params = 4 {max_tokens = 8: 50}
STREAM = b"\x28\x01"
TEXT = b"\x1a\x05hello"
MEDIA = b"\x3a\x07" + b"\x2a\x02\x10\x02" + b"\x32\x01h"  # {offset 0, length = 2: 2}, "h"
EXACT = b"\1\0\0\0" + b"\x2c\1\0\0" + b"\7\0\0\0"


def field(number, data):
    return bytes([number * 8 + 2, len(data)]) + data


CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
UNKNOWN = field(7, b"kept")
PREDICT = field(1, b"e") + field(2, field(1, b"application/json") + field(2, CHAT)) + UNKNOWN


def read(api, data, size=1 << 20):
    body = Body(api)
    for at in range(0, len(data), size):
        body.feed(data[at : at + size])
    return body, body.parse()


def test_token_ids_of_generate_are_exact():
    _, parsed = read(Api.GRPC_GENERATE, framed(REQUEST_ID + IDS + SAMPLING + STREAM))
    assert parsed.prompts == (Prompt(EXACT, exact=True),)
    assert (parsed.max_tokens, parsed.stream, parsed.model) == (50, True, "")


def test_a_text_of_generate_is_a_prompt():
    _, parsed = read(Api.GRPC_GENERATE, framed(REQUEST_ID + TEXT))
    assert parsed.prompts == (Prompt(b"hello"),)
    assert (parsed.max_tokens, parsed.stream) == (None, False)


def test_media_stand_as_their_hashes():
    _, plain = read(Api.GRPC_GENERATE, framed(IDS))
    _, media = read(Api.GRPC_GENERATE, framed(IDS + MEDIA))
    assert plain.prompts[0].data[:8] != media.prompts[0].data[:8]
    assert plain.prompts[0].data[8:] == media.prompts[0].data[8:]


def test_embed_has_token_ids():
    _, parsed = read(Api.GRPC_EMBED, framed(REQUEST_ID + IDS))
    assert parsed.prompts == (Prompt(EXACT, exact=True),)


@pytest.mark.parametrize("data", [b"\1" + framed(IDS)[1:], framed(bytes(6 << 20))])
def test_what_is_compressed_or_long_is_routed_by_load(data):
    body, parsed = read(Api.GRPC_GENERATE, data)
    assert (parsed.model, parsed.prompts) == ("", ())
    assert b"".join(body.rewritten("other", 1)) == data


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\0\0", framed(IDS)[:-1], framed(b"\xff\xff\xff"), framed(REQUEST_ID)),
        framed(TEXT + REQUEST_ID)[: -len(REQUEST_ID)],
    ],
)
def test_what_is_no_message_is_refused(data):
    with pytest.raises(MalformedRequest):
        read(Api.GRPC_GENERATE, data)


@pytest.mark.parametrize("api", [Api.VERTEX_CHAT, Api.VERTEX_RAW])
@given(size=st.integers(1, 300))
def test_vertex_holds_json_which_is_rewritten_in_its_place(api, size):
    body, parsed = read(api, framed(PREDICT), size)
    assert parsed.model == "m"
    assert parsed.stream
    assert parsed.prompts[0].data == b'\n<user>"hi"'
    other = CHAT.replace(b'"m"', b'"other"')
    new = field(1, b"e") + field(2, field(1, b"application/json") + field(2, other)) + UNKNOWN
    assert b"".join(body.rewritten("other")) == framed(new)


ANSWERS = {
    "JSON": (b'{"model":"other","choices":[]}', b'{"model":"m","choices":[]}'),
    "events": (b'event: x\ndata: {"model":"other"}\n\n', b'event: x\ndata: {"model":"m"}\n\n'),
    "two": (b'data: {"model":"other"}\n\n' * 2, b'data: {"model":"m"}\n\n' * 2),
    "content": (b'{"text":"\\"model\\":\\"other\\""}', b'{"text":"\\"model\\":\\"other\\""}'),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize("case", ANSWERS)
@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_answers_of_vertex_name_the_clients_model(case, size):
    came, wanted = ANSWERS[case]
    others = b"\1" + framed(b"compressed")[1:] + framed(bytes(2 << 20)) + framed(b"\xff")
    data = framed(field(2, came) + UNKNOWN) + others + framed(field(2, came)) + b"\0\0"
    restorer = FrameRestorer("m")
    step = size * (1 << 14)
    first = [data[at : at + size] for at in range(0, 200, size)]
    at = len(b"".join(first))
    pieces = [*first, *(data[place : place + step] for place in range(at, len(data), step))]
    passed = [restorer.feed(each, last=False) for each in pieces]
    expected = framed(field(2, wanted) + UNKNOWN) + others + framed(field(2, wanted)) + b"\0\0"
    assert b"".join([*passed, restorer.feed(b"", last=True)]) == expected


def test_vertex_without_json_is_refused():
    with pytest.raises(MalformedRequest):
        read(Api.VERTEX_CHAT, framed(field(1, b"e")))


def test_a_request_of_vllms_has_no_model_to_rewrite():
    data = framed(REQUEST_ID + IDS)
    body, _ = read(Api.GRPC_GENERATE, data)
    assert b"".join(body.rewritten("other", 3)) == data
