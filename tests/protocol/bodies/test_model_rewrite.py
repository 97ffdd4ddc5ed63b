"""Rewriting a model's name: the right field, and nothing else."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.protocol.bodies.model_rewrite import (
    ModelRestorer,
    looked_at,
    model_spans,
    replace_first,
    replace_model,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("model"), inner),
    max_leaves=5,
)


def renamed(value: object, name: str) -> object:
    """What replacing means, on values."""
    assert isinstance(value, dict)
    out = {
        key: name if key == "model" and isinstance(item, str) else item
        for key, item in value.items()
    }
    for part in ("response", "message"):
        inner = out.get(part)
        if isinstance(inner, dict):
            out[part] = {
                key: name if key == "model" and isinstance(item, str) else item
                for key, item in inner.items()
            }
    return out


@given(
    st.dictionaries(st.text() | st.sampled_from(["model", "response", "message"]), JSON),
    st.text(min_size=1),
)
def test_like_replacing_in_the_value(value, name):
    data = json.dumps(value).encode()
    assert json.loads(replace_model(data, name)) == renamed(value, name)


@pytest.mark.parametrize(
    ("data", "spans"),
    [
        (b'{"model":"a"}', [b'"a"']),
        (b'{"m":[{"model":"a"}],"model" : "b"}', [b'"b"']),
        (b'{"response":{"model":"a","x":{"model":"b"}}}', [b'"a"']),
        (b'{"mod\\u0065l":"a"}', [b'"a"']),
        (b'{"model":"a","model":"b"}', [b'"a"', b'"b"']),
        (b'{"x":"\\"model\\":\\"a\\""}', []),
        (b'{"model":5}', []),
        (b'{"model":{"model":"a"}}', []),
        (b'{"model":["a"],"response":{"model":{}}}', []),
        (b'["response",{"model":"a"}]', []),
        (b'{"x":["response",{"model":"a"}]}', []),
        (b'["model","a"]', []),
        (b"]}:,", []),
        (b'{"model":"unfinished', []),
    ],
)
def test_where_the_name_stands(data, spans):
    assert [data[start:end] for start, end in model_spans(data)] == spans


@given(st.binary(max_size=60))
def test_noise_raises_nothing(data):
    assert isinstance(replace_model(data, "x"), bytes)


NAMELESS = st.lists(st.binary(max_size=20), max_size=8).filter(
    lambda chunks: b"model" not in b"".join(chunks)
)


@given(NAMELESS, st.booleans())
def test_bytes_without_a_name_come_out_as_they_went_in(chunks, sse):
    restorer = ModelRestorer("x", sse=sse)
    out = b"".join(restorer.feed(chunk, last=False) for chunk in chunks)
    out += restorer.feed(b"", last=True)
    assert out == b"".join(chunks)


LONG = b"y" * (16 << 20)


def test_of_long_json_the_beginning_is_looked_at():
    restorer = ModelRestorer("x", sse=False)
    head, rest = b'{"data":"', b'","model":"target"}'
    assert restorer.feed(head, last=False) == b""
    assert restorer.feed(LONG, last=False) == head + LONG
    assert restorer.feed(rest, last=True) == rest


@given(
    st.sampled_from(
        [
            b'{"model":"a","choices":[{"text":"}"}]}',
            b'{"content":[{"text":"}\\"}"},{"model":"b"}],"model":"a"}',
            b'{"response":{"output":[{}],"model":"a"}}\n',
            b'{"error":{"message":"none","model":"b"}}',
            b'{"model":null,"more":{}}\r\n',
        ]
    ),
    st.lists(st.integers(0, 60)),
)
def test_json_passes_on_whole_though_its_end_is_not_told(data, cuts):
    cuts = [0, *sorted(cuts), len(data)]
    restorer = ModelRestorer("long", sse=False)
    pieces = [restorer.feed(data[a:b], last=False) for a, b in pairwise(cuts)]
    assert b"".join(pieces) == data.replace(b'"a"', b'"long"')


def test_json_passes_on_from_its_name_on():
    restorer = ModelRestorer("long", sse=False)
    assert restorer.feed(b'{"model":"a","text":"', last=False) == b'{"model":"long","text":"'
    for piece in (b"more", b'"},\n{"model":"a"}'):
        assert restorer.feed(piece, last=False) == piece


def test_before_its_end_no_more_of_json_is_looked_at_than_of_one_piece():
    piece = b'{"a":' + b'{"b":{}},' * 100 + b"{}"
    restorer = ModelRestorer("long", sse=False)
    fed = len(list(looked_at())) // 300
    for _ in range(fed):
        assert restorer.feed(piece, last=False) == b""
    end = b'},"model":"a"' + b"}" * fed
    assert restorer.feed(end, last=False) == b""
    assert restorer.feed(b"", last=True) == piece * fed + end


def test_of_a_long_event_the_beginning_is_looked_at():
    restorer = ModelRestorer("x", sse=True)
    event = b'data: {"model":"target","data":"'
    assert restorer.feed(b"\n" + event, last=False) == b"\n"
    assert restorer.feed(LONG, last=False) == event.replace(b"target", b"x") + LONG
    assert restorer.feed(LONG, last=False) == LONG
    rest = b'"}\n\n' + event + b'"}\n\n' + event
    done = b'"}\n\n' + event.replace(b"target", b"x") + b'"}\n\n'
    assert restorer.feed(rest, last=False) == done
    assert restorer.feed(b'"}', last=True) == event.replace(b"target", b"x") + b'"}'


def test_of_json_the_first_name_is_replaced_and_nothing_behind_it_is_read():
    data = b'{"model":"a","x":"' + b'","model":"a' * 50_000 + b'"}'
    assert ModelRestorer("y", sse=False).feed(data, last=True) == data.replace(b"a", b"y", 1)
    left = looked_at()
    assert replace_first(data, "y", left) == data.replace(b"a", b"y", 1)
    assert next(left) < 10


@pytest.mark.parametrize(
    "unit", [b'data: {"model":"a"}\n', b'data:{"x":"","model":1}\n', b'data:"model"\n']
)
def test_of_a_piece_so_much_is_looked_at_however_many_events_it_has(unit):
    """What is behind that passes as it is; the next piece has its own."""
    most, many = len(list(looked_at())), 20_000
    restorer = ModelRestorer("yy", sse=True)
    for _ in range(2):
        restored = restorer.feed(unit * many, last=False)
        changed = restored.count(b"yy")
        assert restored == unit.replace(b'a"', b'yy"') * changed + unit * (many - changed)
        assert changed <= most // 8


def test_no_more_tokens_of_json_are_looked_at_than_of_a_piece_of_events():
    most = len(list(looked_at()))
    found, behind = (
        b'{"a":[' + b"[]," * count + b'[]],"model":"a"}' for count in (most // 3, most)
    )
    assert ModelRestorer("y", sse=False).feed(found, last=True) == found.replace(b'"a"}', b'"y"}')
    assert ModelRestorer("y", sse=False).feed(behind, last=True) == behind


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_event_has_the_name(end):
    event = b'data:{"id":"\\"model\\"","model":"a","x":{"model":"a"}}' + end
    other = b'data:{"response":{"model":"a"}}' + end + b'event:"model":"a"' + end
    stream = (event + other + end) * 50
    restored = stream.replace(b'","model":"a"', b'","model":"x"')
    restored = restored.replace(b'e":{"model":"a"', b'e":{"model":"x"')
    restorer = ModelRestorer("x", sse=True)
    pieces = [stream[at : at + 7] for at in range(0, len(stream), 7)]
    out = b"".join(restorer.feed(piece, last=False) for piece in pieces)
    assert out + restorer.feed(b"", last=True) == restored
