"""The scanner finds every object of its key, however it comes, compiled and not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.built import loaded

KINDS = [each.ObjectScanner for each in loaded("epp.protocol.openai.object_scanner")]
SCANNERS = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)
FAR = 40
"""Twice as many spaces are more than may stand between a key and its object, if they are split."""
PARTS = st.sampled_from(
    [
        b'"usage"',
        b'"usage":null',
        b'"usage" : {',
        b'"usage"usage":{',
        b'"usa',
        b'ge"',
        b":",
        b" ",
        b"\n",
        b" " * FAR,
        b"{",
        b"}",
        b"x",
        b'"',
    ]
)


def found(kind, chunks):
    """What each chunk completes."""
    looker = kind()
    return [list(looker.feed(chunk)) for chunk in chunks]


@SCANNERS
@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b'{"usage":{"a":1}}'], [[b'{"a":1}']]),
        ([b'{"usage":null}'], [[]]),
        ([b'{"usage":null,"usage" : {}'], [[b"{}"]]),
        ([b'"us', b'age"', b":{}"], [[], [], [b"{}"]]),
        ([b'"us', b'age"', b"x", b":{}"], [[], [], [], []]),
        ([b'"u', b"s", b"a", b"g", b"e", b'":{', b"}"], [[], [], [], [], [], [], [b"{}"]]),
        ([b'\\"usage\\":{}'], [[]]),
        ([b'"usage"{}'], [[]]),
        ([b'"usage"usage":{}'], [[b"{}"]]),
        ([b'"usage":', b"{}"], [[], [b"{}"]]),
        ([b"", b'"usage"\t', b"\r\n: ", b"{}"], [[], [], [], [b"{}"]]),
        ([b'"usage', b"", b'":{}'], [[], [], [b"{}"]]),
        ([b'"usage":{"a":{}', b',"b":{', b"}}}"], [[], [], [b'{"a":{},"b":{}}']]),
        ([b'"usage":{} "usage":{"a":1} "usage":{', b"}"], [[b"{}", b'{"a":1}'], [b"{}"]]),
        ([b'"usage"' + b" " * 60, b":{}"], [[], []]),
        ([b'"usage"' + b" " * 50, b":{}"], [[], [b"{}"]]),
        ([b'"usage"' + b" " * 90 + b":{}"], [[b"{}"]]),
    ],
)
def test_objects_that_are_found(kind, chunks, expected):
    assert found(kind, chunks) == expected


@SCANNERS
def test_an_object_without_end_is_given_up(kind):
    endless = [b'{"usage":{', *[b'"a":1,' * 200] * 100, b'}} {"usage":{"b":2}}']
    assert found(kind, endless)[-1] == [b'{"b":2}']


@SCANNERS
def test_other_types_than_bytes_are_refused(kind):
    with pytest.raises(TypeError):
        kind().feed("text")


@given(st.lists(st.lists(PARTS, max_size=5).map(b"".join), max_size=8))
def test_the_extension_finds_what_its_source_does(chunks):
    assert found(KINDS[0], chunks) == found(KINDS[-1], chunks)


@SCANNERS
@given(st.lists(PARTS.filter(lambda part: len(part) < FAR), max_size=8).map(b"".join), st.data())
def test_a_split_changes_nothing_of_what_is_whole(kind, data, choices):
    place = choices.draw(st.integers(0, len(data)))
    whole, parts = found(kind, [data]), found(kind, [data[:place], data[place:]])
    assert [*parts[0], *parts[1]] == whole[0]
