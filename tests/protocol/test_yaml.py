"""Plain YAML: what is refused, and what the worst of texts costs."""

import contextlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.protocol.endpoints import parse_endpoints
from epp.protocol.yaml import load_yaml, yaml_steps
from tests.protocol.growth import repeated, too_steep


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\nb: [true, 1.5, null, ~, x, 'y', \"z\"]", None),
        ("{a: {b: [c, {d: e}]}, 'f g': 0x10, h: 1_000, i: 1:30}", None),
        ("a: |\n  b\n  c\n", None),
        ('{"json": [1, -2, 3.5e+3, "\\u00e9", false, {}, []]}', None),
        ("%YAML 1.1\n---\na: b\n", None),
        ("", None),
        ("# nothing", None),
        ("a: b\n---\n", {"a": "b"}),
        ("---\na: b\n---\n# the end\n---\n", {"a": "b"}),
        ("2001-02-03", "2001-02-03"),
        ("2001-02-30 99:99:99", "2001-02-30 99:99:99"),
        ("9" * 65, "9" * 65),
        ("'<<': 1", {"<<": 1}),
    ],
)
def test_plain_documents_are_read_as_yaml_reads_them(text, value):
    assert load_yaml(text.encode()) == (yaml.safe_load(text) if value is None else value)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("endpoints: !!bool x", "line 1, column 12", "tags are not allowed"),
        ('a: !!int ""', "line 1, column 4", "tags are not allowed"),
        ("a:\n- !x y", "line 2, column 3", "tags are not allowed"),
        ("a: ! b", "line 1, column 4", "tags are not allowed"),
        ("--- !!map {}", "line 1, column 5", "tags are not allowed"),
        ("a: &b c", "line 1, column 4", "anchors are not allowed"),
        ("a: &b [c]\nd: *b", "line 1, column 4", "anchors are not allowed"),
        ("a: *b", "line 1, column 4", "aliases are not allowed"),
        ("<<: {a: b}", "line 1, column 1", "`<<` has a meaning of its own in YAML; quote it"),
        ("a: =", "line 1, column 4", "`=` has a meaning of its own in YAML; quote it"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1", "the key `a` repeats"),
        ('{a: 1, "a": 2}', "line 1, column 8", "the key `a` repeats"),
        ("no: 1", "line 1, column 1", "a key is not text; quote it"),
        ("[a]: 1", "line 1, column 1", "a key is not text; quote it"),
        ("? {a: b}\n: 1", "line 1, column 3", "a key is not text; quote it"),
        ("a: 0b_", "line 1, column 4", "`0b_` is not a number"),
        ("a\n--- b", "line 2, column 5", "a second document is not allowed"),
        ("a: 'b", "line 1, column 6", "found unexpected end of stream"),
        ("[" * 17, "line 1, column 17", "nested too deeply"),
        ("a:\n\t- b", "line 2, column 1", "a tab cannot indent a line; write spaces"),
        ("a:\n  \tb: c", "line 2, column 3", "a tab cannot indent a line; write spaces"),
        ("\x85\t", "line 2, column 1", "a tab cannot indent a line; write spaces"),
        ("é:\n\t- c", "line 2, column 1", "a tab cannot indent a line; write spaces"),
        ("\ufeffa:\n\t- c", "line 2, column 1", "a tab cannot indent a line; write spaces"),
        ("a: `b", "line 1, column 4", "found character that cannot start any token"),
    ],
)
def test_what_is_not_plain_is_refused_with_its_place(text, place, problem):
    with pytest.raises(ConfigError) as raised:
        load_yaml(text.encode())
    assert raised.value.place == place
    assert problem in str(raised.value)


BOMBS = {
    "aliases": "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n",
    "merges": "a: &a {x: y}\nb: &b {<<: [*a, *a]}\nc: {<<: [*b, *b]}\n",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_where_they_begin(text):
    with pytest.raises(ConfigError, match=r"line 1, column 4: .*anchors are not allowed"):
        load_yaml(text.encode())


WORDS = ("endpoints", "name", "address", "port", "labels", "10.0.0.1", "8000", "a", "<<", "=")
MARKS = (": ", ":", "- ", "? ", "{", "}", "[", "]", ", ", "\n", "\n  ", " ", "'", '"', "|", ">")
ODD = ("!!int ", "!!set ", "!!binary ", "&a ", "*a", "---\n", "%TAG ! !\n", "~", ".nan", "1:59")
MORE = ("0b_", "0x_", "-.inf", "2001-01-01", "#", "\\", "\0", "\ufeff", "\x85", "\t", "é", "1e9")
TEXTS = st.lists(st.sampled_from((*WORDS, *MARKS, *ODD, *MORE)), max_size=40).map("".join)


@given(TEXTS.map(str.encode) | st.binary(max_size=60) | TEXTS.map(lambda t: t.encode("utf-16")))
def test_nothing_but_a_config_error_is_raised(text):
    for read in (load_yaml, parse_endpoints):
        with contextlib.suppress(ConfigError):
            read(text)


COSTLY = {
    "items": repeated(b"endpoints:\n", b"- \n", b""),
    "items in brackets": repeated(b"endpoints: [", b"a,", b"]"),
    "quotes": repeated(b"a: '", b"''", b"'"),
    "escapes": repeated(b'a: "', b"\\x41", b'"'),
    "sexagesimal": repeated(b"a: 1", b":59", b""),
    "digits": repeated(b"a: 1", b"1", b""),
    "comments": repeated(b"", b"#\n", b""),
    "blanks": repeated(b"", b" ", b"a"),
    "words": repeated(b"", b"a ", b""),
    "lines": repeated(b"a: |\n", b" a\n\n", b""),
    "colons": repeated(b"", b"a:", b""),
    "keys": lambda size: "\n".join(f"k{n}: b" for n in range(size // 9)).encode(),
    "open brackets": repeated(b"", b"[", b""),
    "directives": repeated(b"", b"%TAG !a! b\n", b""),
}


@pytest.mark.parametrize("make", COSTLY.values(), ids=COSTLY)
def test_the_cost_of_a_byte_is_constant(make):
    def read(text):
        with contextlib.suppress(ConfigError):
            parse_endpoints(text)

    assert not too_steep(read, make)


def test_a_document_is_read_in_steps():
    steps = sum(1 for _ in yaml_steps(b"- a\n" * 10_000))
    assert steps > 30
