"""Bodies made to cost much: of many small items, in odd forms, in tiny pieces, or without an end.

What they cost is counted in bytes of memory and in calls, for a body and for one four times its
length: nothing may grow faster than the body, or hold more than a few of its lengths.
"""

import json
import sys
import tracemalloc
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp._pb import engine_api_pb2 as pb
from epp.errors import MalformedRequest
from epp.model.request import Api
from epp.protocol.bodies.body import Body
from epp.protocol.bodies.body_reader import BodyData, BodyReader, add_piece
from epp.protocol.bodies.coercion import LONGEST_VALUE
from epp.protocol.bodies.grpc_body import framed
from epp.protocol.bodies.request_json import LONGEST_PROMPT
from epp.protocol.bodies.token_prompts import LONGEST_FEATURE
from tests.native.built import loaded, needs

_NAME = "epp.protocol.bodies.body_reader"
KINDS = [each.BodyReader for each in loaded(_NAME)]
READERS = pytest.mark.parametrize("reader", KINDS, ids=lambda kind: kind.__module__)
needs_reader = needs(_NAME, "the compiled reader of bodies")
PIECE = 1 << 16
PROMPTS, MESSAGES = 64, 10_000
ALLOWED_BYTES = 24 << 20
"""Beside four times the body: the objects of `_MAX_VALUES` values, and a prompt."""


def filled(start: bytes, item: bytes, end: bytes) -> Callable[[int], bytes]:
    return lambda size: start + (item + b",") * (size // (len(item) + 1) - 1) + item + end


def tokenized(size: int, hashes: Sequence[str] = ()) -> bytes:
    """Write a message of vLLM's with `size` token ids, each a byte, and hashes of media."""
    ids, media = pb.Tokenized(input_ids=[1] * size), pb.Multimodal(mm_hashes=hashes)
    request = pb.GenerateRequest(tokenized=ids, mm_inputs=media.SerializeToString())
    return request.SerializeToString()


CHAT = b'{"model":"m","messages":['
PLACES = b']},"mm_placeholders":{"i":[{"offset":0,"length":1}]}'
RESULT = b'{"content":[{"type":"tool_result","content":['
TINY = {
    "texts": (Api.COMPLETIONS, filled(b'{"model":"m","prompt":[', b'""', b"]}")),
    "token lists": (Api.COMPLETIONS, filled(b'{"model":"m","prompt":[', b"[1]", b"]}")),
    "both": (Api.COMPLETIONS, filled(b'{"model":"m","prompt":["a",', b"[1]", b"]}")),
    "token ids": (Api.COMPLETIONS, filled(b'{"model":"m","prompt":[', b"1", b"]}")),
    "nested": (Api.COMPLETIONS, filled(b'{"model":"m","prompt":[', b"[[1]]", b"]}")),
    "embedded": (Api.EMBEDDINGS, filled(b'{"model":"m","input":[', b'""', b"]}")),
    "messages": (Api.CHAT, filled(CHAT, b"{}", b"]}")),
    "role": (Api.CHAT, filled(CHAT + b'{"role":"\\u0061"},', b"{}", b"]}")),
    "escaped key": (Api.CHAT, filled(CHAT + b'{"rol\\u0065":"a"},', b"{}", b"]}")),
    "twice": (Api.CHAT, filled(b'{"model":"m",' + CHAT[1:], b"{}", b"]}")),
    "no message": (Api.CHAT, filled(CHAT, b"1", b"]}")),
    "media": (Api.CHAT, filled(CHAT + b'{"content":[', b'{"type":"i"}', b"]}]}")),
    "parts": (Api.CHAT, filled(CHAT + b'{"content":[', b'{"text":""}', b"]}]}")),
    "tools": (Api.CHAT, filled(CHAT + b'{"content":""}],"tools":[', b"{}", b"]}")),
    "items": (Api.RESPONSES, filled(b'{"model":"m","input":[', b"{}", b"]}")),
    "numbers": (Api.RESPONSES, filled(b'{"model":"m","input":[', b"1", b"]}")),
    "conversation": (Api.CONVERSATIONS, filled(b'{"items":[', b"{}", b"]}")),
    "blocks": (Api.MESSAGES, filled(CHAT + b'{"content":[', b'{"type":"t"}', b"]}]}")),
    "results": (Api.MESSAGES, filled(CHAT + RESULT, b'{"source":{"data":""}}', b"]}]}]}")),
    "system": (Api.MESSAGES, filled(CHAT + b'{"content":""}],"system":[', b"{}", b"]}")),
    "generate": (Api.GENERATE, filled(b'{"token_ids":[', b"1", b"]}")),
    "features": (Api.GENERATE, filled(b'{"token_ids":[1],"features":{"x":[', b"{}", b"]}}")),
    "hashes": (
        Api.GENERATE,
        filled(b'{"token_ids":[1],"features":{"mm_hashes":{"i":[', b'""', PLACES + b"}}"),
    ),
    "places": (
        Api.GENERATE,
        filled(b'{"token_ids":[1],"features":{"mm_placeholders":{"i":[', b"{}", b"]}}}"),
    ),
    "sampling": (
        Api.GENERATE,
        filled(b'{"token_ids":[1],"sampling_params":{"x":[', b'""', b"]}}"),
    ),
    "limits": (Api.CHAT, filled(CHAT + b'{}],"max_tokens":[', b'""', b"]}")),
    "salts": (Api.SGLANG_GENERATE, filled(b'{"text":"a","extra_key":[', b'""', b"]}")),
    "salt": (Api.CHAT, lambda size: CHAT + b'{}],"cache_salt":"' + b"\\n" * (size // 2) + b'"}'),
    "sglang": (Api.SGLANG_GENERATE, filled(b'{"input_ids":[', b"[1]", b"]}")),
    "raw": (Api.RAW_PREDICT, filled(b'{"prompt":"a","messages":[', b"{}", b"]}")),
    "counted": (Api.COUNT_TOKENS, filled(CHAT, b"{}", b"]}")),
    "gRPC": (Api.GRPC_GENERATE, lambda size: framed(tokenized(size))),
    "gRPC media": (Api.GRPC_GENERATE, lambda size: framed(tokenized(9, [""] * (size // 2)))),
    "keys": (Api.CHAT, filled(CHAT + b"{}],", b'"":1', b"}")),
    "elsewhere": (Api.CHAT, filled(CHAT + b'{}],"x":[', b"{}", b"]}")),
    "cut off": (Api.CHAT, filled(CHAT, b"{}", b"")),
}


def take(reader, api, data):
    """Read a body that comes in pieces; return what was found, or the status of the refusal."""
    body = Body(api, reader)
    for at in range(0, len(data), PIECE):
        body.feed(data[at : at + PIECE])
    try:
        return body.parse()
    except MalformedRequest as error:
        return error.status


def with_calls(work):
    """Do it and count the calls of functions, those that C implements too."""
    count = 0

    def hear(_, event, __):
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(hear)
    try:
        done = work()
    finally:
        sys.setprofile(None)
    return done, count


@READERS
@pytest.mark.parametrize("form", TINY)
def test_tiny_items_cost_no_more_than_their_bytes(reader, form):
    """In memory; and in calls, which are bounded by what is looked at."""
    api, made = TINY[form]
    data = made(3 << 20)
    tracemalloc.start()
    found, calls = with_calls(lambda: take(reader, api, data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(data) + ALLOWED_BYTES
    assert calls < 40 * MESSAGES
    if found != MalformedRequest.status:
        assert len(found.prompts) <= PROMPTS
        assert sum(len(prompt.data) for prompt in found.prompts) <= LONGEST_PROMPT
        assert all(len(prompt.marks) <= MESSAGES + 1 for prompt in found.prompts)


@needs_reader
@pytest.mark.parametrize("form", ["hashes", "places", "sampling", "limits", "salts", "salt"])
def test_of_a_long_value_no_more_is_copied_than_is_read(form):
    api, made = TINY[form]
    reader = BodyReader(api.value, LONGEST_PROMPT, nameless=True)
    reader.feed(made(1 << 19))
    found = reader.finish()
    assert found is not None
    *values, logprobs, _ = found
    assert max(map(len, (*values[:-2], *logprobs))) <= LONGEST_VALUE + 1
    assert max(map(len, values[-2:])) <= LONGEST_FEATURE + 1
    parsed = take(BodyReader, api, made(8 << 20))
    assert (parsed.max_tokens, parsed.multimodal) == (None, False)
    assert len(parsed.cache_salt) <= LONGEST_VALUE + 1


@needs_reader
@pytest.mark.parametrize("size", [100_000, 2_000_000])
def test_of_many_prompts_and_messages_the_first_are_looked_at(size):
    api, made = TINY["texts"]
    assert len(take(BodyReader, api, made(size)).prompts) == PROMPTS
    api, made = TINY["messages"]
    (prompt,) = take(BodyReader, api, made(size)).prompts
    assert prompt.data == b"\n<>" * MESSAGES
    assert prompt.marks == list(range(3, 3 * MESSAGES + 1, 3))


@READERS
@pytest.mark.parametrize("size", [100, 2 << 20])
def test_a_model_is_named_in_a_thousand_characters(reader, size):
    message = {"role": "user", "content": "x" * size}
    fields = {"model": "é" * 1024, "messages": [message]}
    body = Body(Api.CHAT, reader)
    body.feed(json.dumps(fields).encode())
    assert body.parse().model == "é" * 1024
    body = Body(Api.CHAT, reader)
    body.feed(json.dumps(fields | {"model": "é" * 1025}).encode())
    with pytest.raises(MalformedRequest, match="`model` has more than 1024 characters"):
        body.parse()


@needs_reader
@pytest.mark.parametrize("form", ["role", "twice", "no message", "nested"])
def test_what_is_long_and_odd_is_routed_by_load(form):
    api, made = TINY[form]
    found = take(BodyReader, api, made(2 << 20))
    assert (found.model, found.prompts) == ("m", ())


@needs_reader
def test_a_long_body_that_is_no_json_says_where():
    api, made = TINY["cut off"]
    data = made(2 << 20)
    with pytest.raises(MalformedRequest, match=rf"not valid JSON \(byte {len(data)}\)"):
        whole(api, data).parse()
    with pytest.raises(MalformedRequest, match=rf"not valid JSON \(byte {len(data) + 1}\)"):
        whole(api, data + b"]]}").parse()
    missing = data.replace(b"model", b"midel", 1) + b"]}"
    assert whole(api, missing).parse().model == ""
    ill = data.replace(b'"m"', b"[5]", 1) + b"]}"
    with pytest.raises(MalformedRequest, match="`model` must be a string"):
        whole(api, ill).parse()


def whole(api, data):
    body = Body(api, BodyReader)
    body.feed(data)
    return body


@needs_reader
def test_a_long_piece_is_read_in_turns():
    api, made = TINY["texts"]
    body = whole(api, made(5 << 20))
    turns = 0
    while body.unread:
        body.read_on()
        turns += 1
    assert 4 <= turns <= 6
    assert len(body.parse().prompts) == PROMPTS


@READERS
def test_tiny_pieces_are_joined(reader):
    data = json.dumps({"model": "m", "messages": [{"role": "u", "content": "x" * 90_000}]}).encode()
    body = Body(Api.CHAT, reader)
    for byte in data:
        body.feed(bytes([byte]))
    assert len(body.pieces) < len(data) / 60
    assert body.whole() == data
    assert len(body.parse().prompts) == 1


@given(st.lists(st.integers(0, 3000), max_size=300))
def test_joined_pieces_are_what_came(sizes):
    pieces: list[BodyData] = []
    came = b""
    for number, size in enumerate(sizes):
        piece = bytes([number % 256]) * size
        came += piece
        add_piece(pieces, piece)
    assert b"".join(pieces) == came


ORDER = ("model", "tools", "system", "instructions", "messages", "prompt", "input")
WORDS = st.text('ab é"\\\n', max_size=40)
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image"]), "text": WORDS}), max_size=3
)
BLOCKS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}),
        st.fixed_dictionaries({"type": st.just("thinking"), "thinking": WORDS}),
        st.fixed_dictionaries({"type": st.just("tool_result"), "content": WORDS}),
    ),
    max_size=3,
)
CANONICAL = st.one_of(
    st.tuples(
        st.just(Api.CHAT),
        st.fixed_dictionaries(
            {
                "model": st.just("m"),
                "tools": st.lists(WORDS, max_size=1),
                "messages": st.lists(
                    st.fixed_dictionaries(
                        {"role": WORDS.map(len).map(str), "content": WORDS | PARTS}
                    ),
                    min_size=1,
                    max_size=6,
                ),
            }
        ),
    ),
    st.tuples(
        st.just(Api.COMPLETIONS),
        st.fixed_dictionaries(
            {
                "model": st.just("m"),
                "prompt": st.one_of(
                    WORDS.filter(bool),
                    st.lists(WORDS, min_size=1, max_size=4),
                    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
                    st.lists(st.lists(st.integers(0, 9), max_size=20), min_size=1, max_size=4),
                ),
            }
        ),
    ),
    st.tuples(
        st.just(Api.MESSAGES),
        st.fixed_dictionaries(
            {
                "model": st.just("m"),
                "system": WORDS,
                "messages": st.lists(
                    st.fixed_dictionaries({"role": st.just("u"), "content": WORDS | BLOCKS}),
                    min_size=1,
                    max_size=6,
                ),
            }
        ),
    ),
    st.tuples(
        st.just(Api.RESPONSES),
        st.fixed_dictionaries({"model": st.just("m"), "instructions": WORDS, "input": WORDS}),
    ),
)


@needs_reader
@given(CANONICAL, st.integers(1, 400), st.integers(4, 120))
def test_what_is_enough_gives_the_prompts_of_the_whole_body(asked, size, longest):
    api, fields = asked
    data = json.dumps({key: fields[key] for key in ORDER if key in fields}).encode()
    early, late = (BodyReader(api.value, longest // 4 * 4) for _ in range(2))
    late.feed(data)
    for at in range(0, len(data), size):
        early.feed(data[at : at + size])
        if early.enough:
            break
    found, known = early.finish(not early.enough), late.finish()
    assert found is not None
    assert known is not None
    assert [each[0] for each in known[-1]][: len(found[-1])] == [each[0] for each in found[-1]]
    assert all(each[0] == b"" for each in known[-1][len(found[-1]) :])
    assert found[:1] == known[:1]
