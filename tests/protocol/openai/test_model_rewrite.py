"""Rewriting a model's name: the right field, and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.protocol.openai.model_rewrite import ModelRestorer, model_spans, replace_model

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("model"), inner),
    max_leaves=20,
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


def test_json_too_long_to_hold_passes_unchanged():
    restorer = ModelRestorer("x", sse=False)
    head = b'{"model":"target","data":"'
    assert restorer.feed(head, last=False) == b""
    assert restorer.feed(b"y" * (16 << 20), last=False) == head + b"y" * (16 << 20)
    assert restorer.feed(b'"}', last=True) == b'"}'
