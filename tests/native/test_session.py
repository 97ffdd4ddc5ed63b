"""Sessions without a network: what goes in, what comes out, how much of it at once."""

import gc
import weakref
from typing import Any

import pytest

from tests.native import wire
from tests.native.built import require_native
from tests.native.wire import Kind

require_native()

from epp.adapters.extproc.http2.session import (  # noqa: E402 (only where it is)
    CLOSED,
    ENDED,
    FAULT,
    MESSAGE,
    OPENED,
    ConnectionFailure,
    Session,
    Stream,
)

LIMITS = {
    "max_streams": 10,
    "stream_window": 1 << 20,
    "max_header_bytes": 1 << 14,
    "max_message_bytes": 1 << 20,
}
MOST = 1 << 30


@pytest.fixture
def session():
    made = Session(**LIMITS)
    assert made.receive(wire.greeting(window=(1 << 31) - 1)) == []
    made.receive(wire.window_update(0, 1 << 30) + wire.acknowledged())
    made.take(MOST)
    return made


def opened(session, number=1):
    ((stream, event, value),) = session.receive(wire.headers(number))
    assert (event, value) == (OPENED, None)
    return stream


def told(events):
    return [(event, value) for _, event, value in events]


def test_a_stream_from_its_start_to_its_end(session):
    stream = opened(session)
    assert (stream.id, stream.path, stream.method) == (1, wire.PATH, b"POST")
    assert stream.content_type == b"application/grpc"
    said = wire.message(b"one") + wire.message(b"two")
    events = session.receive(wire.data(1, said, end=True))
    assert told(events) == [(MESSAGE, b"one"), (MESSAGE, b"two"), (ENDED, None)]
    stream.send(b"answer")
    stream.end(0)
    frames, rest = wire.parse(session.take(MOST))
    assert [kind for kind, *_ in frames] == [Kind.HEADERS, Kind.DATA, Kind.HEADERS]
    assert frames[1][3] == wire.message(b"answer")
    assert rest == b""
    assert (stream.closed, session.streams, session.unheard) == (True, {}, False)


def test_an_end_after_all_is_out_sends_no_empty_frame(session):
    """Envoy takes one empty frame, and calls the next one a flood."""
    stream = opened(session)
    stream.send(b"answer")
    session.take(MOST)
    stream.end(0)
    frames, _ = wire.parse(session.take(MOST))
    assert [kind for kind, *_ in frames] == [Kind.HEADERS, Kind.RST_STREAM]


def test_what_is_taken_is_bounded(session):
    stream = opened(session)
    for _ in range(64):
        stream.send(b"x" * 65_000)
    total, largest = b"", 0
    while piece := session.take(100_000):
        assert session.full == (stream.queued > 0)
        largest = max(largest, len(piece))
        total += piece
    assert largest < 100_000 + (1 << 14) + 9
    frames, _ = wire.parse(total)
    found = b"".join(payload for kind, _, _, payload in frames if kind == Kind.DATA)
    assert found == wire.message(b"x" * 65_000) * 64
    assert session.queued == 0


def test_streams_take_turns(session):
    for number in (1, 3):
        stream = opened(session, number)
        stream.send(b"x" * 500_000)
    frames, _ = wire.parse(session.take(200_000))
    assert {number for kind, _, number, _ in frames if kind == Kind.DATA} == {1, 3}


def test_a_stream_that_closes_while_writing_is_heard_of(session):
    stream = opened(session)
    session.receive(wire.headers(1))  # not its trailers: an error, answered by a reset
    session.take(MOST)
    assert session.unheard
    assert told(session.hear()) == [(CLOSED, wire.Code.PROTOCOL_ERROR)]
    assert stream.closed


def test_faults_are_told_once(session):
    opened(session)
    large = b"\0" + ((1 << 20) + 1).to_bytes(4, "big")
    events = session.receive(wire.data(1, wire.message(b"a") + large))
    assert told(events) == [(MESSAGE, b"a"), (FAULT, 8)]
    assert session.receive(wire.data(1, b"x" * 100, end=True)) == []


def test_what_is_said_to_a_closed_stream_is_lost(session):
    stream = opened(session)
    session.receive(wire.reset(1))
    stream.send(b"late")
    stream.end(0, "late")
    stream.refuse(415)
    stream.reset(8)
    stream.hold()
    stream.release()
    assert session.take(MOST) == b""
    assert session.queued == 0


def test_what_is_said_after_the_end_is_lost(session):
    stream = opened(session)
    stream.end(5, "100 % gone\n")
    stream.send(b"late")
    stream.end(0)
    frames, _ = wire.parse(session.take(MOST))
    assert [kind for kind, *_ in frames] == [Kind.HEADERS, Kind.RST_STREAM]


def test_a_lost_connection(session):
    first, second = opened(session, 1), opened(session, 3)
    first.send(b"x" * 100)
    second.end(0)
    assert session.abandon() == [first]
    assert (session.done, session.take(MOST), session.receive(b"x")) == (True, b"", [])
    first.send(b"late")


WRONG: list[Any] = [None, "text", bytearray(b"x"), 5]


@pytest.mark.parametrize("wrong", WRONG)
def test_bytes_are_asked_for(session, wrong):
    stream = opened(session)
    for take in (session.receive, stream.send):
        with pytest.raises(TypeError):
            take(wrong)


def test_streams_are_opened_by_the_peer():
    with pytest.raises(TypeError):
        Stream()


def test_a_flood_is_a_failure_that_can_be_explained(session):
    with pytest.raises(ConnectionFailure, match="Flooding"):
        session.receive(wire.ping() * 20_000)
    frames, _ = wire.parse(session.take(MOST))
    assert frames[-1][0] == Kind.GOAWAY


class Owner:
    """Something that can be watched."""


def test_what_is_over_is_forgotten(session):
    """Streams and their owners go without the garbage collector, when they are over."""
    gc.disable()
    try:
        for number in (1, 3):
            stream = opened(session, number)
            owner = Owner()
            stream.owner = owner
            gone = weakref.ref(owner)
            del owner
            if number == 1:
                stream.end(0)
            del stream
            session.take(MOST)
            session.receive(wire.reset(number))
            assert gone() is None
    finally:
        gc.enable()
