"""Where bodies end, however they come."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bench.extproc.body_end import BodyEnd

CUTS = st.lists(st.integers(0, 400), max_size=6)


def parts(body, cuts):
    """A body in pieces, of which some may be empty."""
    ends = sorted({min(cut, len(body)) for cut in cuts} | {0, len(body)})
    return [body[start:end] for start, end in pairwise(ends)]


@given(st.binary(min_size=1, max_size=300), CUTS)
def test_a_body_of_a_length_ends_with_its_last_byte(body, cuts):
    end = BodyEnd(b"http/1.1 200 ok\r\ncontent-length: %d\r\nserver: x" % len(body))
    *before, last = [end.reached(part) for part in parts(body, cuts)]
    assert (any(before), last) == (False, True)


def test_a_body_of_no_length_ends_at_once():
    assert BodyEnd(b"http/1.1 200 ok\r\ncontent-length: 0").reached(b"")


@given(st.lists(st.text("ab\r\n", min_size=1, max_size=40), max_size=5), CUTS)
def test_a_chunked_body_ends_with_its_last_chunk(chunks, cuts):
    written = [f"{len(each):x}\r\n{each}\r\n" for each in chunks]
    body = "".join([*written, "0\r\n\r\n"]).encode()
    end = BodyEnd(b"http/1.1 200 ok\r\ntransfer-encoding: chunked")
    *before, last = [end.reached(part) for part in parts(body, cuts)]
    assert (any(before), last) == (False, True)
