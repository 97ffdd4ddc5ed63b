"""The watch shows what it must, and its kernel what its twin does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.protocol import watch
from epp.protocol.usage import UsageScanner

IN_USE = UsageScanner.__base__
KINDS = sorted({watch.Watch, IN_USE}, key=repr)
WATCHES = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)
PARTS = st.sampled_from(
    [
        b'"usage"',
        b'"usage":null',
        b'"usage" : {',
        b'"usa',
        b'ge"',
        b":",
        b" ",
        b"\n",
        b"{",
        b"x",
        b'"',
    ]
)


def shown(kind, chunks, *, keep=False):
    """What is shown at each chunk, from the key on; None where nothing is."""

    def seen(self, data):
        self.data = data
        self.rest = data[data.rindex(watch.KEY) :] if keep else b""

    looker = type("Seen", (kind,), {"seen": seen})()
    found = []
    for chunk in chunks:
        looker.data = b""
        looker.feed(chunk)
        found.append(looker.data[looker.data.index(watch.KEY) :] if looker.data else None)
    return found


@WATCHES
@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b'{"usage":{"a"'], [b'"usage":{"a"']),
        ([b'{"usage":null}'], [None]),
        ([b'{"usage":null,"usage" : {}'], [b'"usage":null,"usage" : {}']),
        ([b'"us', b'age"', b"x"], [None, b'"usage"', None]),
        ([b'"u', b"s", b"a", b"g", b"e", b'":{'], [None, None, None, None, None, b'"usage":{']),
        ([b'\\"usage\\":{'], [None]),
        ([b'"usage":', b"{}"], [b'"usage":', None]),
        ([b"", b'"usage"\t'], [None, b'"usage"\t']),
        ([b'"usage', b"", b'"'], [None, None, b'"usage"']),
    ],
)
def test_what_is_shown(kind, chunks, expected):
    assert shown(kind, chunks) == expected


@given(st.lists(st.lists(PARTS, max_size=4).map(b"".join), max_size=8), st.booleans())
def test_the_kernel_shows_what_its_twin_does(chunks, keep):
    assert shown(IN_USE, chunks, keep=keep) == shown(watch.Watch, chunks, keep=keep)


@WATCHES
def test_an_eager_one_shows_everything(kind):
    def seen(self, data):
        self.data, self.rest = data, data

    looker = type("Eager", (kind,), {"seen": seen})()
    looker.eager = True
    for chunk in (b"a", b"", b"b"):
        looker.feed(chunk)
    assert looker.data == b"ab"
    looker.eager = False
    looker.feed(b"c")
    assert looker.data == b"ab"
