"""Bodies read as they arrive: what the compiled reader finds is what its twin does."""

import json
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import MalformedRequest
from epp.model.request import Api
from epp.protocol.bodies.apis import FRAMED, NAMELESS
from epp.protocol.bodies.body import Body
from epp.protocol.bodies.body_reader import BodyReader
from epp.protocol.bodies.request_json import LONGEST_PROMPT, parse_request
from tests.native.built import loaded, needs

APIS = [each for each in Api if each not in {Api.OTHER, *FRAMED}]
_NAME = "epp.protocol.bodies.body_reader"
KINDS = [each.BodyReader for each in loaded(_NAME)]
READERS = pytest.mark.parametrize("reader", KINDS, ids=lambda kind: kind.__module__)
needs_reader = needs(_NAME, "the compiled reader of bodies")

WORDS = st.sampled_from(["", "a", "grüße 😀", 'q"\\/\b\n', "x" * 40, "\x7f"])
TEXTS = st.one_of(WORDS, st.text(max_size=20).filter(lambda text: text.isprintable()))
ODD: st.SearchStrategy[object] = st.sampled_from(
    [
        *(None, True, 0, -1, 1.5, [], {}, [[]], {"role": 1}, "", 2**32, 10**30),
        *(1.0, 1000.0, 1e300, 10**400, "5", "-1", "on", "True", "x" * 17_000, {"max_tokens": 5}),
    ]
)
SELDOM = st.sampled_from([*[False] * 40, True])
CALLS = st.just([{"role": "x", "content": ["y"], "type": "z"}])


def mostly(usual):
    """Draw what is usual, and now and then anything else."""
    return SELDOM.flatmap(lambda odd: ODD if odd else usual)


PARTS = st.fixed_dictionaries(
    {"type": mostly(st.sampled_from(["text", "input_text", "output_text", "image_url", "té"]))},
    optional={
        "text": mostly(TEXTS),
        "image_url": st.just({"url": "data:...", "type": "text", "text": "no"}),
        "uuid": st.sampled_from(["a", None, "", {}]),
    },
)
IMAGE = {"type": "image", "source": {"type": "base64", "data": "abcd"}}
RESULTS = mostly(TEXTS | st.lists(st.sampled_from([IMAGE, {"type": "text", "text": "r"}, 5, [[]]])))
BLOCKS = st.fixed_dictionaries(
    {
        "type": mostly(
            st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image", "é"])
        )
    },
    optional={
        "text": mostly(TEXTS),
        "thinking": TEXTS,
        "id": TEXTS,
        "name": TEXTS,
        "tool_use_id": TEXTS,
        "input": st.sampled_from([{"data": "d", "x": [{"data": "e"}]}, [{"y": {"data": "f"}}]]),
        "content": RESULTS,
        "source": st.just(IMAGE["source"]),
        "cache_control": st.just({"type": "ephemeral", "content": [{"source": {"data": "g"}}]}),
    },
)
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc=1;"}
SYSTEMS = TEXTS | st.sampled_from([BILLING["text"], BILLING["text"] + "\nBe", "x-ray"])
SYSTEM = SYSTEMS | st.lists(st.sampled_from([BILLING, {"text": "be"}]), max_size=3)
MESSAGES = st.fixed_dictionaries(
    {
        "role": mostly(
            st.sampled_from(["user", "assistant", "system", "tool", "", "rôle", "r" * 33])
        ),
        "content": mostly(
            SYSTEMS | st.lists(PARTS | BLOCKS | mostly(SYSTEMS) | st.just(BILLING), max_size=3)
        ),
    },
    optional={
        "reasoning": mostly(TEXTS),
        "reasoning_content": mostly(TEXTS),
        "tool_calls": mostly(CALLS),
        "tool_call_id": mostly(TEXTS),
        "name": TEXTS | st.just({"content": [{"type": "text"}]}),
    },
)
ITEMS = st.one_of(MESSAGES, st.just({"type": "function_call", "name": "f", "arguments": "{}"}))
TOKENS = mostly(st.integers(0, 2**32 - 1) | st.sampled_from([0, 9, 10]))
PROMPTS = st.one_of(
    TEXTS,
    st.lists(TEXTS, min_size=1, max_size=3),
    st.lists(TOKENS, min_size=1, max_size=5),
    st.lists(st.lists(TOKENS, max_size=4) | TEXTS, min_size=1, max_size=3),
)
FEATURES = st.fixed_dictionaries(
    {
        "mm_hashes": mostly(st.just({"image": ["one", "two"]})),
        "mm_placeholders": mostly(
            st.integers(-1, 3).map(
                lambda at: {"image": [{"offset": 4 - at, "length": 1}, {"offset": 0, "length": at}]}
            )
        ),
    },
    optional={"kwargs_data": st.just({"mm_hashes": {"image": ["no"]}}), "x": ODD},
)
SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": mostly(st.just(8)),
        "max_new_tokens": mostly(st.just(9)),
        "n": mostly(st.integers(0, 3)),
        "prompt_logprobs": mostly(st.none()),
        "skip_reading_prefix_cache": mostly(st.booleans()),
        "x": st.just({"max_tokens": 7}),
    },
)
EFFORTS = st.sampled_from(
    [
        *({"effort": "high", "input": "no"}, {"format": {"effort": "no"}, "effort": "é\n"}),
        *({"effort": None}, {"effort": 5}, {"effort": {"effort": "no"}}, [{"effort": "no"}]),
        *({"effort": {}}, {"effort": []}, {}),
    ]
)
FIELDS = {
    "model": mostly(st.sampled_from(["m", "org/model", "modèle", "m" * 100])),
    "messages": mostly(st.lists(MESSAGES, min_size=1, max_size=4)),
    "prompt": mostly(PROMPTS),
    "input": mostly(PROMPTS | st.lists(ITEMS, min_size=1, max_size=3)),
    "items": mostly(TEXTS | st.lists(ITEMS, min_size=1, max_size=3)),
    "token_ids": mostly(PROMPTS),
    "input_ids": mostly(PROMPTS),
    "text": mostly(PROMPTS),
}
OPTIONAL = st.fixed_dictionaries(
    {},
    optional={
        "stream": mostly(st.booleans()),
        "cache_salt": mostly(TEXTS),
        "max_tokens": mostly(st.just(5)),
        "max_completion_tokens": mostly(st.just(6)),
        "max_output_tokens": mostly(st.just(7)),
        "n": mostly(st.integers(-1, 200)),
        "prompt_logprobs": mostly(st.none()),
        "echo": mostly(st.booleans()),
        "logprobs": mostly(st.none() | st.booleans()),
        "top_logprobs": mostly(st.none() | st.integers(0, 5)),
        "tools": mostly(st.just([{"type": "function", "model": "no"}])),
        "documents": mostly(st.just([{"title": "a", "messages": "no"}])),
        "chat_template": mostly(TEXTS),
        "chat_template_kwargs": mostly(st.sampled_from([{"tools": [], "x": True}, {}])),
        "reasoning_effort": mostly(st.sampled_from(["low", "high", None])),
        "reasoning": mostly(EFFORTS),
        "thinking": mostly(st.sampled_from([{"type": "disabled"}, {"type": "adaptive", "x": 1}])),
        "output_config": mostly(EFFORTS),
        "instructions": mostly(SYSTEM),
        "system": mostly(SYSTEM),
        "sampling_params": mostly(SAMPLING),
        "prompt_embeds": mostly(TEXTS),
        "input_embeds": st.just([[0.5, 1]]),
        "features": mostly(FEATURES),
        "extra_key": mostly(TEXTS | st.just(["a", "b"])),
        "priority": st.integers(-2, 2),
        "temperature": st.sampled_from([0, 0.5, -1e-3, 1e300]),
        "response_format": st.just({"messages": [{"role": "x"}], "prompt": [1], "model": "no"}),
    },
)
WANTED = {
    Api.CHAT: {"messages"},
    Api.CHAT_RENDER: {"messages"},
    Api.COMPLETIONS: {"prompt"},
    Api.COMPLETIONS_RENDER: {"prompt"},
    Api.EMBEDDINGS: {"input"},
    Api.RESPONSES: {"input"},
    Api.CONVERSATIONS: {"items"},
    Api.IMAGES: {"prompt"},
    Api.MESSAGES: {"messages"},
    Api.COUNT_TOKENS: {"messages"},
    Api.GENERATE: {"token_ids"},
    Api.SGLANG_GENERATE: {"input_ids"},
    Api.RAW_PREDICT: {"messages"},
}
UNWANTED = {
    api: {"messages", "prompt", "input", "items", "token_ids", "input_ids", "text"} - fields
    for api, fields in WANTED.items()
}
"""What a client of an API would not send, and most that are drawn leave out."""

SPOILING = (
    *(b"", b",", b":", b'"', b"\\", b"{", b"}", b"[", b"]", b"0", b"-", b".", b"e", b"tru", b"\n"),
    *(b"\x01", b"\xff", b"\\u12", b"\\ud800", b"\\udc00", b"\\ud800\\udc00", b'"model":"x",'),
)


@st.composite
def asked(draw: st.DrawFn) -> tuple[Api, bytes]:
    """An API and a body, as one of many clients would write it."""
    api = draw(st.sampled_from(APIS))
    wanted = FIELDS.keys() if draw(SELDOM) else FIELDS.keys() - UNWANTED[api]
    body = {key: draw(FIELDS[key]) for key in sorted(wanted)} | draw(OPTIONAL)
    kept = body.keys()
    missing = draw(st.sampled_from(sorted(kept))) if draw(SELDOM) else None
    keys = draw(st.permutations(sorted(kept - {missing})))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]))
    text = json.dumps(
        {key: body[key] for key in keys}, ensure_ascii=draw(st.booleans()), separators=separators
    )
    return api, text.encode("utf-8", "surrogatepass")


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def arriving(data, places):
    """Cut a body; every second piece is a view, as of a long message."""
    return [memoryview(part) if n % 2 else part for n, part in enumerate(cut(data, places))]


def read(reader, api, pieces):
    body = Body(api, reader)
    for piece in pieces:
        body.feed(piece)
    assert body.whole() == b"".join(pieces)
    try:
        return body.parse()
    except MalformedRequest as error:
        return error.reason, str(error)


def twin(api, data):
    try:
        return parse_request(api, data)
    except MalformedRequest as error:
        return error.reason, str(error)


@needs_reader
@given(asked(), st.lists(st.integers(0, 1 << 16), max_size=6))
def test_bodies_of_clients_are_read_alike(asking, places):
    api, data = asking
    assert read(BodyReader, api, arriving(data, places)) == twin(api, data)


@needs_reader
@given(asked(), st.integers(0, 1 << 16), st.sampled_from(SPOILING), st.integers(0, 3))
def test_damaged_bodies_are_read_alike(asking, place, put, drop):
    api, data = asking
    place %= len(data) + 1
    spoilt = data[:place] + put + data[place + drop :]
    assert read(BodyReader, api, [spoilt]) == twin(api, spoilt)
    assert read(BodyReader, api, [bytes([byte]) for byte in spoilt]) == twin(api, spoilt)


def chat(*contents, **more):
    turns = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"messages": turns, "model": "m", **more}).encode()


def tokens(count):
    ids = [(each * 2654435761) % 2**32 for each in range(count)]
    return json.dumps({"model": "m", "prompt": ids}).encode(), array("I", ids).tobytes()


PICTURE = {"type": "image_url", "image_url": {"url": "data:" + "A" * 50_000}}
FITTING = {
    "mm_hashes": {"image": ["a"]},
    "mm_placeholders": {"image": [{"offset": 1, "length": 1}]},
}
LONG = "so it goes\n" * (LONGEST_PROMPT // 10)
ORDINARY = [
    (Api.CHAT, chat("a", "b", tools=[{"type": "function"}], stream=True, max_tokens=5)),
    (Api.CHAT, chat('line\n\t"quoted"' * 9000, 'é \\ "', cache_salt="s\\n")),
    (Api.CHAT, chat([{"type": "text", "text": "what is this?"}, PICTURE], "go on")),
    (Api.CHAT, chat("short", LONG, "behind it", tools=[])),
    (Api.CHAT, chat("a", documents=[{"text": "b" * 70_000}], chat_template="t" * 70_000, echo=1)),
    (Api.COMPLETIONS, json.dumps({"model": "m", "prompt": LONG}).encode()),
    (Api.COMPLETIONS, json.dumps({"model": "m", "prompt": ["a", "b" * 70_000]}).encode()),
    (Api.CHAT, chat(["what", {"type": "text", "text": " is "}, "this?"], [LONG], "behind it")),
    (Api.MESSAGES, chat(["what is this?"], stream="on", max_tokens=1000.0)),
    (Api.COMPLETIONS, tokens(9000)[0]),
    (Api.COMPLETIONS, json.dumps({"prompt": [0, 7, 4294967295], "model": "m"}).encode()),
    (Api.EMBEDDINGS, json.dumps({"input": [[1, 2], "x", []], "model": "m"}).encode()),
    (Api.EMBEDDINGS, json.dumps({"input": [[]], "model": "m"}).encode()),
    (Api.RESPONSES, json.dumps({"input": "hi", "instructions": "be", "model": "m"}).encode()),
    (Api.RESPONSES, json.dumps({"input": [{"type": "x"}], "tools": [], "model": "m"}).encode()),
    (Api.CONVERSATIONS, json.dumps({"items": [{"role": "user", "content": "a"}]}).encode()),
    (Api.IMAGES, json.dumps({"prompt": "a cat", "model": "m"}).encode()),
    (Api.MESSAGES, chat([{"type": "tool_result", "content": [IMAGE]}], system=[BILLING])),
    (Api.MESSAGES, chat("a", thinking={"type": "disabled"}, output_config={"effort": "low"})),
    (Api.MESSAGES, chat("a", thinking={"x": "y" * 20_000}, output_config={"effort": "low"})),
    (Api.GENERATE, tokens(9000)[0].replace(b"prompt", b"token_ids")),
    (Api.GENERATE, json.dumps({"token_ids": [1, 2], "features": FITTING}).encode()),
    (Api.GENERATE, json.dumps({"token_ids": [1, 2], "features": FITTING | {"x": LONG}}).encode()),
    (Api.GENERATE, json.dumps({"token_ids": [1], "sampling_params": {"max_tokens": 5}}).encode()),
    (Api.SGLANG_GENERATE, json.dumps({"text": "hi", "extra_key": "s"}).encode()),
    (Api.SGLANG_GENERATE, json.dumps({"input_ids": [[1, 2], [3]]}).encode()),
    (Api.RAW_PREDICT, json.dumps({"input": "hi", "instructions": "be"}).encode()),
    (Api.CHAT_RENDER, chat("a" * (2 << 20), max_tokens=5)),
    (Api.COUNT_TOKENS, chat("a", tools=[{"type": "function"}])),
    (Api.CHAT, chat("a").replace(b"role", b"rol\\u0065").replace(b"model", b"\\u006Dodel")),
    (Api.CHAT, chat("a").replace(b'"model"', b'"other"')),
]


@needs_reader
@pytest.mark.parametrize(("api", "data"), ORDINARY, ids=range(len(ORDINARY)))
@pytest.mark.parametrize("size", [1 << 30, 16_384, 997])
def test_ordinary_bodies_are_read_as_they_arrive(api, data, size):
    reader = BodyReader(api.value, LONGEST_PROMPT, api in NAMELESS)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    for piece in pieces:
        reader.feed(piece)
    while reader.unread:
        reader.read_on()
    assert reader.finish() is not None
    assert read(BodyReader, api, pieces) == parse_request(api, data)


@READERS
def test_a_message_is_found_again_once_its_pieces_are_joined(reader):
    """The second one's role and text come in single bytes, behind pieces that became one."""
    turns = [{"role": "system", "content": text} for text in ("Be.", BILLING["text"] * 2)]
    data = json.dumps({"messages": turns, "model": "m"}, separators=(",", ":")).encode()
    parsed = read(reader, Api.CHAT, [bytes([byte]) for byte in data])
    assert parsed.prompts[0].data == b'\n<system>"Be."\n<system>'


@needs_reader
@pytest.mark.parametrize("piece", ["{}", bytearray(b"{}"), memoryview(b"{}  ")[::2], None])
def test_pieces_are_bytes_or_views_of_bytes(piece):
    reader = BodyReader(Api.CHAT.value, LONGEST_PROMPT, False)
    with pytest.raises(TypeError, match="neither bytes nor a view of bytes"):
        reader.feed(piece)
    assert reader.pieces == []


@READERS
def test_of_long_prompts_the_start_is_read(reader):
    parsed = read(reader, Api.CHAT, [chat("short", LONG, "behind it")])
    (prompt,) = parsed.prompts
    assert len(prompt.data) == LONGEST_PROMPT
    assert prompt.data.startswith(b'\n<user>"short"\n<user>"so it goes\\n')
    assert prompt.marks == [len(b'\n<user>"short"')]


@needs_reader
def test_of_long_lists_of_token_ids_the_start_is_read():
    data, packed = tokens(LONGEST_PROMPT // 4 + 3)
    assert read(BodyReader, Api.COMPLETIONS, [data]).prompts[0].data == packed[:LONGEST_PROMPT]


@READERS
@given(places=st.lists(st.integers(0, 200), max_size=5))
@pytest.mark.parametrize(
    "data",
    [
        b'{"messages":[{"role":"user","content":"\\"model\\":\\"m\\""}],"model" : "m"}',
        b'{"model":"m","messages":[{"role":"user","content":"x","model":"other"}]}',
        b'{"metadata":{"model":"n"},"model":"m","messages":[{"role":"user","content":"x"}]} ',
    ],
)
def test_another_models_name_goes_where_it_was(reader, data, places):
    body = Body(Api.CHAT, reader)
    for piece in arriving(data, places):
        body.feed(piece)
    assert body.parse().model == "m"
    name = 'new "näme"'
    at = data.index(b'"m"', data.index(b'"model"', data.index(b'"}]') if b" : " in data else 0))
    assert b"".join(body.rewritten(name)) == data[:at] + json.dumps(name).encode() + data[at + 3 :]


def test_a_body_of_no_api_is_kept():
    body = Body(Api.OTHER)
    body.feed(b"\x00\x01")
    body.feed(b"{")
    assert body.pieces == [b"\x00\x01", b"{"]


@READERS
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("body", [b"0\r", b"[] ", b" null\n", b'"{" ', b"\t true "])
def test_what_is_not_an_object_is_refused(reader, api, body):
    for size in (1, len(body)):
        read = Body(api, reader)
        for at in range(0, len(body), size):
            read.feed(body[at : at + size])
        with pytest.raises(MalformedRequest, match="Expected `object`"):
            read.parse()
