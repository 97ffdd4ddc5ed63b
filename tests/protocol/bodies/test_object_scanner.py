"""The scanner finds every object of its key, however it comes, compiled and not."""

import json
import tracemalloc

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.native.built import loaded

KINDS = [each.ObjectScanner for each in loaded("epp.protocol.bodies.object_scanner")]
SCANNERS = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)
FAR = 40
"""Twice as many spaces are more than may stand between a key and its object, if they are split."""
PARTS = st.sampled_from(
    [
        *(b'"usage"', b'"usage":null', b'"usage" : {', b'"usage"usage":{', b'"usa', b'ge"', b":"),
        *(b" ", b"\n", b" " * FAR, b"{", b"}", b"x", b'"', b"[", b"]", b"\\", b'"usage":{"a":1}'),
        *(b'{"usage":{}}', b'{"usage":{}}\n'),
    ]
)


def found(kind, chunks, levels=1, *, lines=True):
    """What each chunk settles, and what the end does."""
    looker = kind(levels, lines=lines)
    return [*(list(looker.feed(chunk)) for chunk in chunks), list(looker.end())]


def at_the_top(kind, chunks):
    """What each chunk completes, where all are told to be at the top by what follows."""
    looker = kind(lines=True)
    settled = [list(looker.feed(chunk)) for chunk in chunks]
    return [each for part in settled for each in part] + list(looker.feed(b"}\n"))


@SCANNERS
@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b'{"usage":{"a":1}'], [b'{"a":1}']),
        ([b'{"usage":null'], []),
        ([b'{"usage":null,"usage" : {}'], [b"{}"]),
        ([b'"us', b'age"', b":{}"], [b"{}"]),
        ([b'"us', b'age"', b"x", b":{}"], []),
        ([b'"u', b"s", b"a", b"g", b"e", b'":{', b"}"], [b"{}"]),
        ([b'\\"usage\\":{}'], []),
        ([b'"usage"{}'], []),
        ([b'"usage"usage":{}'], [b"{}"]),
        ([b'"usage":', b"{}"], [b"{}"]),
        ([b"", b'"usage"\t', b"\r\n: ", b"{}"], [b"{}"]),
        ([b'"usage', b"", b'":{}'], [b"{}"]),
        ([b'"usage":{"a":{}', b',"b":{', b"}}"], [b'{"a":{},"b":{}}']),
        ([b'"usage":{} "usage":{"a":1} "usage":{', b"}"], [b"{}", b'{"a":1}', b"{}"]),
        ([b'"usage":{},"us', b'age": ', b"{}"], [b"{}", b"{}"]),
        ([b'"usage"' + b" " * 60, b":{}"], []),
        ([b'"usage"' + b" " * 50, b":{}"], [b"{}"]),
        ([b'"usage"' + b" " * 90 + b":{}"], [b"{}"]),
    ],
)
def test_objects_that_are_found(kind, chunks, expected):
    assert at_the_top(kind, chunks) == expected


@SCANNERS
@pytest.mark.parametrize(
    ("line", "depth"),
    [
        (b'{"usage":{"a":1}}', 1),
        (b'{"usage":{"a":1},"x":[{},{"}":"]}\\"}"}]}', 1),
        (b'{"usage":{"a":1},"x":"\\\\"}', 1),
        (b'{"response":{"x":1,"usage":{"a":1}},"type":"t"}', 2),
        (b'[{"usage":{"a":1}}]', 2),
        (b'{"x":[{"usage":{"a":1}}]}', 3),
        (b'{"x":{"y":{"usage":{"a":1}},"z":{}}}', 3),
        (b'"usage":{"a":1}', 0),
    ],
)
def test_the_depth_is_known_at_the_end_of_a_line(kind, line, depth):
    for levels in (1, 2, 3):
        expected = [b'{"a":1}'] if 0 < depth <= levels else []
        for place in range(len(line)):
            chunks = [line[:place], line[place:], b"\n"]
            assert found(kind, chunks, levels) == [[], [], expected, []], place
            assert found(kind, chunks, levels, lines=False) == [[], [], [], expected], place


@SCANNERS
def test_one_line_says_nothing_of_another(kind):
    lines = b'{"x":{"usage":{"a":1}}}\n{"usage":{"b":1}}\n{"x":{"usage":{"a":1}}}\n'
    assert found(kind, [lines]) == [[b'{"b":1}'], []]


@SCANNERS
def test_an_object_without_end_is_given_up(kind):
    endless = [b'{"usage":{', *[b'"a":1,' * 200] * 100, b'}}\n{"usage":{"b":2}}\n']
    assert found(kind, endless)[-2:] == [[b'{"b":2}'], []]


@SCANNERS
def test_a_value_without_end_keeps_little(kind):
    looker = kind()
    for _ in range(2_000):
        assert not looker.feed(b'{"usage":{"a":1},"x":"' + b"y" * 50 + b'","z":[')
    assert not looker.end()
    looker.feed(b'{"usage":{"last":1}}' + b"]}" * 2_000)
    assert len(looker.end()) <= 16


@SCANNERS
def test_other_types_than_bytes_are_refused(kind):
    with pytest.raises(TypeError):
        kind().feed("text")


@given(
    st.lists(st.lists(PARTS, max_size=5).map(b"".join), max_size=8),
    st.integers(1, 3),
    st.booleans(),
)
def test_the_extension_finds_what_its_source_does(chunks, levels, lines):
    expected = found(KINDS[0], chunks, levels, lines=lines)
    assert found(KINDS[-1], chunks, levels, lines=lines) == expected


@SCANNERS
@given(st.lists(PARTS.filter(lambda part: len(part) < FAR), max_size=8).map(b"".join), st.data())
def test_a_split_changes_nothing_of_what_is_whole(kind, data, choices):
    place = choices.draw(st.integers(0, len(data)))
    whole, parts = found(kind, [data]), found(kind, [data[:place], data[place:]])
    assert [*parts[0], *parts[1], *parts[2]] == [*whole[0], *whole[1]]


VALUES = st.recursive(
    st.none() | st.integers(0, 9) | st.text('"\\{}[]a\n:', max_size=6) | st.just("usage"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "usage", "b"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def objects_under(value, levels):
    """The objects under the key, at most so many levels down, without those that hold others."""
    if levels <= 0 or not isinstance(value, (dict, list)):
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if key == "usage" and isinstance(inner, dict):
            yield inner
        else:
            yield from objects_under(inner, levels - 1)


def plain(value):
    """Whether all that stands under the key are objects of numbers, as the scanner wants it."""
    if isinstance(value, list):
        return all(map(plain, value))
    if not isinstance(value, dict):
        return True
    return all(
        all(isinstance(each, int) for each in inner.values())
        if key == "usage" and isinstance(inner, dict)
        else plain(inner)
        for key, inner in value.items()
    )


@SCANNERS
@given(st.dictionaries(st.sampled_from(["a", "b", "usage"]), VALUES), st.integers(1, 3), st.data())
def test_it_finds_what_a_parser_does(kind, value, levels, choices):
    assume(plain(value))
    data = json.dumps(value).encode()
    place = choices.draw(st.integers(0, len(data)))
    seen = [
        json.loads(each)
        for part in found(kind, [data[:place], data[place:]], levels)
        for each in part
    ]
    assert seen == list(objects_under(value, levels))


HOSTILE = {
    "usages": b'{"usage":{"prompt_tokens":1}}' * 500,
    "texts": b'{"usage":{},"x":[' + b'"a",' * 4_000,
    "one text": b'{"usage":{},"x":"' + b"y" * 16_000,
    "backslashes": b'{"usage":{},"x":"' + b"\\" * 16_000,
    "key again and again": b'"usage"' * 2_000,
    "key cut": b'{"usage":{}' + b',"usag":1' * 2_000,
    "object without end": b'{"usage":{' * 1_600,
    "far objects": b'{"usage":{}, ' + (b'"usage"' + b" " * 57 + b'",') * 250,
}


@SCANNERS
@pytest.mark.parametrize("kind_of_body", HOSTILE)
def test_what_is_kept_between_pieces_is_bounded(kind, kind_of_body):
    looker, body = kind(2, True), HOSTILE[kind_of_body]
    tracemalloc.start()
    for start in range(0, 8 * len(body), 64):
        looker.feed(body[start % len(body) :][:64])
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 64 << 10
