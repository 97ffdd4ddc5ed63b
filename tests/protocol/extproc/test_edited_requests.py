"""What is written into a body, in all modes in which it is seen, however it is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    Modes,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
)
from epp.protocol.extproc.step import Wants
from epp.values import replaced
from tests.protocol.bodies.odd_bodies import NAME, PRIORITY, edited, requests
from tests.protocol.bodies.test_body import cut
from tests.protocol.extproc.conversation import DUPLEX, exchange, outcome

HEAD = {":method": "POST", ":path": "/v1/completions"}


def resolved(request):
    return replaced(request, target_model=NAME, priority=-PRIORITY)


def sent(mode, pieces, *, trailers):
    """Ask; return the body that the model server gets, and the length that it is told."""
    machine = exchange(propagate_priority=True, resolve=resolved)
    replies = machine.receive(RequestHeaders(headers=HEAD, modes=Modes(request=mode)), 0)
    for number, piece in enumerate(pieces, 1):
        end = number == len(pieces) and not trailers
        replies += machine.receive(RequestBody(body=piece, end_of_stream=end), 1)
    replies += machine.receive(RequestTrailers(), 1) if trailers else []
    while machine.wants() in {Wants.TURN, Wants.ROOM}:
        replies += machine.proceed(1)
    seen = outcome(replies)
    whole = [each.mutation.body or b"" for each in replies if isinstance(each, BodyReply)]
    body = b"".join([seen.request, *whole])
    return body, seen.set_headers.get("content-length", str(len(body)))


@given(requests(), st.lists(st.integers(0, 1 << 12), max_size=6), st.booleans())
@pytest.mark.parametrize("mode", [DUPLEX, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_the_server_reads_what_is_written(mode, data, places, trailers):
    pieces = cut(data, places) if mode is DUPLEX else [data]
    body, length = sent(mode, pieces, trailers=trailers)
    change = {"model": NAME, "priority": PRIORITY}
    assert json.loads(body) == json.loads(data) | change
    assert body == edited(data, change)
    assert length == str(len(body))
