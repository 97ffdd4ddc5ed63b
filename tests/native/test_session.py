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
    "max_queued": 1 << 30,
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
    assert (stream.closed, session.streams, session.has_events) == (True, {}, False)


@pytest.mark.parametrize("size", [0, 1, 1019, 1024, 1025, 70_000])
def test_a_message_is_sent_in_two_parts_or_whole(session, size):
    stream = opened(session)
    parts = b"x" * size, b"y" * (size // 2)
    stream.send(*parts)
    stream.send(b"whole")
    assert stream.queued == sum(map(len, parts)) + 5 + len(b"whole") + 5
    frames, _ = wire.parse(session.take(MOST))
    found = b"".join(payload for kind, _, _, payload in frames if kind == Kind.DATA)
    assert found[:65_535] == (wire.message(b"".join(parts)) + wire.message(b"whole"))[:65_535]


def test_an_end_after_all_is_out_sends_no_empty_frame(session):
    """Envoy takes one empty frame, and calls the next one a flood."""
    stream = opened(session)
    stream.send(b"answer")
    session.take(MOST)
    stream.end(0)
    frames, _ = wire.parse(session.take(MOST))
    assert [kind for kind, *_ in frames] == [Kind.HEADERS, Kind.RST_STREAM]


@pytest.mark.parametrize(
    ("window", "size"),
    [
        pytest.param(11, 6, id="the stream's"),
        pytest.param((1 << 31) - 1, 65_530, id="the connection's"),
    ],
)
def test_an_end_after_all_is_out_waits_for_no_window(window, size):
    """RFC 9113 §6.9: flow control is for DATA frames alone; the connection begins with 65,535."""
    session = Session(**LIMITS)
    session.receive(wire.greeting(window=window) + wire.acknowledged())
    stream = opened(session)
    stream.send(b"x" * size)
    session.take(MOST)
    assert stream.queued == 0
    stream.end(0)
    frames, _ = wire.parse(session.take(MOST))
    assert [kind for kind, *_ in frames] == [Kind.HEADERS, Kind.RST_STREAM]
    session.receive(wire.window_update(0, 100) + wire.window_update(1, 100))
    assert (session.take(MOST), session.streams) == (b"", {})


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
    assert session.has_events
    assert told(session.take_events()) == [(CLOSED, wire.Code.PROTOCOL_ERROR)]
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


def turns(session, data):
    """The events of every call that it takes to hand over what a peer sent."""
    calls, start = [], 0
    while start < len(data):
        calls.append(session.receive(data, start))
        assert session.unread < len(data) - start
        start = len(data) - session.unread
    return calls


@pytest.fixture
def roomy():
    """A session of many streams, whose peer names a request's headers by a byte each."""
    made = Session(**LIMITS | {"max_streams": 20_000})
    first, again = wire.remembered()
    made.receive(wire.greeting() + wire.acknowledged() + wire.headers(1, first))
    made.take(MOST)
    return made, again


EVENTS_A_TURN = 64


class TestTurns:
    """However a peer packs it, one call does no more than one turn's work."""

    def test_streams(self, roomy):
        session, again = roomy
        calls = turns(session, b"".join(wire.headers(at, again) for at in range(3, 20_003, 2)))
        assert sum(map(len, calls)) == 10_000
        assert max(map(len, calls)) <= EVENTS_A_TURN + 1

    def test_streams_that_end(self, roomy):
        session, again = roomy
        said = [wire.headers(at, again, end=True) for at in range(3, 2_003, 2)]
        calls = turns(session, b"".join(said))
        assert sum(map(len, calls)) == 2_000
        assert max(map(len, calls)) <= EVENTS_A_TURN + 2

    def test_messages_of_a_frame_each(self, session):
        opened(session)
        calls = turns(session, wire.data(1, wire.message(b"")) * 5_000)
        assert sum(map(len, calls)) == 5_000
        assert max(map(len, calls)) <= EVENTS_A_TURN + 1

    def test_messages_in_one_frame_are_cut_by_the_bytes(self, session):
        opened(session)
        calls = turns(session, wire.data(1, wire.message(b"") * 3_000))
        assert sum(map(len, calls)) == 3_000
        assert max(map(len, calls)) <= (1 << 12) // 5

    def test_a_long_body_is_one_turn(self, session):
        opened(session)
        long = wire.data(1, wire.message(b"x" * 500_000))
        assert [len(events) for events in turns(session, long)] == [1]

    def test_frames_that_say_nothing(self, session):
        opened(session)
        calls = turns(session, wire.window_update(1, 1) * 20_000)
        assert len(calls) >= 10

    @pytest.mark.parametrize("streams", [*range(16, 24), 500])
    def test_whatever_the_turns_everything_is_heard(self, roomy, streams):
        """A turn of some 64 events ends in the last frame of one of these, too."""
        session, again = roomy
        ids = range(3, 3 + 2 * streams, 2)
        said = b"".join(
            wire.headers(at, again) + wire.data(at, wire.message(b"%d" % at), end=True)
            for at in ids
        )
        heard = [(stream.id, *what) for call in turns(session, said) for stream, *what in call]
        assert heard == [
            (at, *what)
            for at in ids
            for what in ((OPENED, None), (MESSAGE, b"%d" % at), (ENDED, None))
        ]


class TestAbuse:
    @pytest.mark.parametrize(
        ("again", "cost"),
        [
            pytest.param(lambda at: wire.headers(at) + wire.reset(at), 1, id="reset by the peer"),
            pytest.param(
                lambda at: wire.headers(at) + wire.window_update(at, (1 << 31) - 1), 10, id="window"
            ),
            pytest.param(
                lambda at: (
                    wire.headers(at, wire.request(more=[(b"content-length", b"1")]))
                    + wire.data(at, b"xx")
                ),
                10,
                id="content-length",
            ),
            pytest.param(lambda at: wire.headers(at) * 2, 10, id="headers twice"),
            pytest.param(
                lambda at: wire.headers(at, wire.request(path=None)), 10, id="malformed headers"
            ),
            pytest.param(lambda at: wire.headers(at, end=True), 1, id="no message"),
        ],
    )
    def test_a_stream_that_comes_to_nothing(self, session, again, cost):
        before = session.abuse_score
        for at in range(1, 11, 2):
            session.receive(again(at))
            session.take(MOST)
        assert session.abuse_score - before == 5 * cost

    def test_an_answer_does_not_excuse_an_error(self, session):
        """A peer that makes the server reset a stream has had the server's work (CVE-2025-8671)."""
        stream = opened(session)
        session.receive(wire.data(1, wire.message(b"x")))
        stream.send(b"answer")
        session.take(MOST)
        before = session.abuse_score
        session.receive(wire.window_update(1, (1 << 31) - 1))
        session.take(MOST)
        assert session.abuse_score - before == 10

    def test_refusals_and_calls_that_fail_at_once(self, session):
        before = session.abuse_score
        opened(session, 1).refuse(415)
        opened(session, 3).end(12, "there is no such method")
        opened(session, 5).end(0)
        assert session.abuse_score - before == 2

    def test_settings_cost_more_the_more_streams_are_open(self, roomy):
        session, again = roomy
        turns(session, b"".join(wire.headers(at, again) for at in range(3, 3_203, 2)))
        before = session.abuse_score
        session.receive(wire.settings(window=1 << 16))
        assert session.abuse_score - before == 1 + 1_601 // 16
        with pytest.raises(ConnectionFailure):
            session.receive(wire.settings(window=1 << 16) * 33)
        frames, _ = wire.parse(session.take(MOST))
        assert frames[-1][0] == Kind.GOAWAY
