"""Usage is found in every form, and nothing is mistaken for it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.request import Usage
from epp.protocol.bodies.object_scanner import ObjectScanner
from epp.protocol.bodies.usage import merge_usage

CASES = [
    pytest.param(
        b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}',
        Usage(3, 4, None),
        id="plain",
    ),
    pytest.param(
        b'data: {"usage" : {"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2,'
        b'"x":{"y":1}},"completion_tokens":4}}\n\n',
        Usage(3, 4, 2),
        id="nested",
    ),
    pytest.param(
        b'data: {"usage":null}\n\ndata: {"usage":\n {"prompt_tokens":1}}\n\n',
        Usage(1, 0, None),
        id="null first",
    ),
    pytest.param(
        b'{"usage":{"input_tokens":8,"output_tokens":1,"input_tokens_details":{"cached_tokens":0}}}',
        Usage(8, 1, 0),
        id="responses API",
    ),
    pytest.param(
        b'data: {"usage":{"input_tokens":8,"output_tokens":1}}\n\n'
        b'data: {"usage":{"output_tokens":30}}\n\n',
        Usage(8, 30, None),
        id="split over events",
    ),
    pytest.param(
        b'{"usage":{"prompt_tokens":8,"prompt_tokens_details":{"cached_tokens":9}}}',
        Usage(8, 0, None, implausible=True),
        id="more cached than there is",
    ),
    pytest.param(b'{"text":"\\"usage\\": {\\"prompt_tokens\\": 1}"}', None, id="in a text"),
    pytest.param(b'{"usage":"none","usage2":{"prompt_tokens":1}}', None, id="not an object"),
    pytest.param(b'{"usage":{"prompt_tokens":"1"}}', None, id="wrong type"),
    pytest.param(b'{"usage":{"prompt_tokens":-1}}', None, id="negative"),
    pytest.param(b'{"usage":{"prompt_tokens":16777216}}', Usage(1 << 24), id="the longest"),
    pytest.param(b'{"usage":{"prompt_tokens":16777217}}', None, id="longer than any prompt"),
    pytest.param(
        b'{"choices":[{"message":{"tool_calls":[{"arguments":{"usage":{"prompt_tokens":1}}}]}}],'
        b'"usage":{"prompt_tokens":3},"metadata":{"usage":{"prompt_tokens":7}},"x":"}}\\"{"}',
        Usage(3),
        id="deeper ones beside it",
    ),
    pytest.param(
        b'data: {"choices":[{"delta":{"usage":{"prompt_tokens":1}}}]}\n\n'
        b'data: {"usage":{"prompt_tokens":3},"choices":[]}\n\ndata: [DONE]\n\n',
        Usage(3),
        id="deeper ones in another event",
    ),
    pytest.param(b'[{"usage":{"prompt_tokens":1}}]', None, id="in an array"),
    pytest.param(b'"usage":{"prompt_tokens":1}', None, id="in nothing"),
    pytest.param(
        b'{"a":"' + b'\\\\" ,"b":{"a\\"usage":{"prompt_tokens":1}},"usage":{"prompt_tokens":2}}',
        Usage(2),
        id="a key that ends like it",
    ),
    pytest.param(b'{"usage":{"prompt_tokens":1', None, id="unfinished"),
    pytest.param(b'"usage"' * 40, None, id="the word alone"),
]


def scan(*chunks: bytes) -> Usage | None:
    whole = b"".join(chunks)
    watch, usage = ObjectScanner(lines=whole.startswith(b"data:")), None
    for chunk in chunks:
        usage = merge_usage(usage, watch.feed(chunk))
    return merge_usage(usage, watch.end())


@pytest.mark.parametrize(("data", "usage"), CASES)
def test_found_whatever_the_split(data, usage):
    assert scan(data) == usage
    for place in range(len(data)):
        assert scan(data[:place], data[place:]) == usage, place
    assert scan(*(bytes([byte]) for byte in data)) == usage


@given(st.data())
def test_three_way_splits(data):
    case = data.draw(st.sampled_from(CASES))
    text, usage = case.values
    first = data.draw(st.integers(0, len(text)))
    second = data.draw(st.integers(first, len(text)))
    assert scan(text[:first], text[first:second], text[second:]) == usage


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_noise_raises_nothing(chunks):
    tail = b' "usage":{"prompt_tokens":2}}' if b'"usage"' not in b"".join(chunks) else b""
    usage = scan(*chunks, tail)
    assert usage in (None, Usage(2, 0, None))


@given(st.text(), st.integers(0, 2**24))
def test_generated_text_is_never_usage(text, tokens):
    event = {"choices": [{"delta": {"content": text}}], "usage": {"prompt_tokens": tokens}}
    assert scan(json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")) == Usage(tokens)
