"""Messages of many MiB on their way: what a session keeps of them, and tells of it."""

import tracemalloc

import pytest

from tests.native import wire
from tests.native.built import require_native

require_native()

from epp.adapters.extproc.http2.session import (  # noqa: E402 (only where it is)
    GROWN,
    MESSAGE,
    OPENED,
    Session,
)

MIB = 1 << 20
LIMITS = {
    "max_streams": 10,
    "stream_window": 64 * MIB,
    "max_header_bytes": 1 << 14,
    "max_message_bytes": 64 * MIB,
    "max_queued": 1 << 30,
}


def told(session, data):
    return [(event, value) for _, event, value in session.receive(wire.data(1, data))]


@pytest.fixture
def wide():
    """A session with a stream whose peer reads nothing."""
    made = Session(**LIMITS)
    made.receive(wire.greeting(window=0) + wire.acknowledged())
    ((stream, event, _),) = made.receive(wire.headers(1))
    assert event == OPENED
    return made, stream


def test_what_is_kept_of_a_message_that_has_not_ended_is_told(wide):
    session, _ = wide
    begun = wire.message(bytes(5 * MIB))
    said = told(session, begun[:MIB])
    assert said == []  # as much as a window
    for at in range(MIB, len(begun), MIB):
        said += told(session, begun[at : at + MIB])
    *grown, (last, message) = said
    assert grown == [(GROWN, 2 * MIB), (GROWN, 4 * MIB), (GROWN, 5 * MIB)]
    assert (last, len(message)) == (MESSAGE, 5 * MIB)


@pytest.mark.parametrize("stop", [lambda stream: stream.end(8), lambda stream: stream.reset(8)])
def test_a_stream_that_is_ended_keeps_no_message(wide, stop):
    session, stream = wide
    stream.send(b"the peer does not read this")
    tracemalloc.start()
    try:
        told(session, wire.message(bytes(5 * MIB))[: 4 * MIB])
        assert tracemalloc.get_traced_memory()[0] > 4 * MIB
        stop(stream)
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()
