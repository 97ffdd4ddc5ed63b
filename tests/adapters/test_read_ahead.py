"""What waits for turns: in which order it is handled, and what of it never is."""

import asyncio
from contextlib import AsyncExitStack
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.adapters.extproc.transports import server_class
from tests.adapters.raw_peer import GET, WIDE, greeted
from tests.native import wire
from tests.native.built import require_native
from tests.tasks import until

require_native()

from epp.adapters.extproc.http2.session import CLOSED, OPENED, Session  # noqa: E402 (as above)
from epp.adapters.extproc.read_ahead import ReadAhead  # noqa: E402 (only where it is built)
from epp.adapters.extproc.turns import Turns  # noqa: E402 (as above)

CALLS = range(1, 9, 2)


@pytest.fixture
def transport():
    return server_class("native")


def greeted_session():
    session = Session(
        max_streams=100,
        stream_window=1 << 20,
        max_header_bytes=1 << 14,
        max_message_bytes=4 << 20,
        max_queued=1 << 30,
    )
    session.receive(wire.greeting() + wire.acknowledged())
    return session


def received(session, data):
    """Receive all of it, turn by turn; its events."""
    events = session.receive(data)
    while session.unread:
        events += session.receive(data, len(data) - session.unread)
    return events


def told(events):
    return [(stream.id, event) for stream, event, _ in events]


def begin(events):
    """Have the calls owned that are opened here, as a connection does."""
    for stream, event, _ in events:
        if event == OPENED:
            stream.owner = object()


def in_turn(ahead, now):
    """Take all, turn by turn; the calls in the order in which they were handled."""
    order = []
    while ahead:
        events = ahead.take(now)
        begin(events)
        order += [number for number, _ in groupby(stream.id for stream, _, _ in events)]
    return order


def opened(*calls):
    return b"".join(wire.headers(each) + wire.data(each, wire.message(b"?")) for each in calls)


def test_new_calls_are_begun_in_the_order_of_arrival():
    ahead = ReadAhead(Turns())
    ahead.add(greeted_session().receive(opened(1, 3, 5)), 0.0)
    assert in_turn(ahead, 0.0) == [1, 3, 5]


def test_once_the_oldest_has_waited_for_half_of_its_peers_patience_the_newest_is_begun_first():
    session, ahead = greeted_session(), ReadAhead(Turns())
    ahead.add(session.receive(opened(1, 3, 5)), 7.0)
    ahead.add(session.receive(opened(7, 9)), 7.6)
    ahead.add(session.receive(wire.reset(1)), 8.0)
    assert in_turn(ahead, 8.0) == [9, 7, 5, 3]
    # Once none waits, what the next peers have the patience for is not known.
    ahead.add(session.receive(opened(11, 13)), 9.0)
    assert in_turn(ahead, 9.6) == [11, 13]


def test_calls_of_a_peer_that_gives_none_up_are_begun_in_the_order_of_arrival_however_late():
    session, ahead = greeted_session(), ReadAhead(Turns())
    ahead.add(session.receive(opened(1, 3)), 0.0)
    ahead.add(session.receive(opened(5, 7)), 60.0)
    assert in_turn(ahead, 60.0) == [1, 3, 5, 7]


def test_while_the_oldest_is_not_late_yet_it_is_begun_first():
    session, ahead = greeted_session(), ReadAhead(Turns())
    ahead.add(session.receive(opened(1)), 0.0)
    ahead.add(session.receive(opened(3, 5)), 0.7)
    ahead.add(session.receive(wire.reset(1)), 1.0)
    assert in_turn(ahead, 1.0) == [3, 5]


def test_of_a_call_that_is_given_up_before_older_ones_nothing_follows():
    session, ahead = greeted_session(), ReadAhead(Turns())
    ahead.add(session.receive(opened(1, 3, 5, 7)), 0.0)
    ahead.add(session.receive(wire.reset(5)), 0.6)
    assert in_turn(ahead, 1.0) == [1, 3, 7]


def test_a_peer_that_waits_for_twice_as_long_as_for_the_last_it_gave_up_is_patient():
    session, ahead = greeted_session(), ReadAhead(Turns())
    ahead.add(session.receive(opened(1, 3, 5, 7)), 0.0)
    ahead.add(session.receive(wire.reset(1)), 0.005)
    assert in_turn(ahead, 1.0) == [3, 5, 7]


def test_begun_calls_come_before_new_ones():
    session, ahead = greeted_session(), ReadAhead(Turns())
    begin(session.receive(opened(1)))
    ahead.add(session.receive(opened(3) + wire.data(1, wire.message(b"!"))), 0.0)
    assert in_turn(ahead, 0.0) == [1, 3]


def test_however_much_comes_of_begun_calls_new_ones_are_begun():
    session, turns = greeted_session(), Turns()
    ahead = ReadAhead(turns)
    begin(session.receive(opened(1)))
    much = wire.data(1, wire.message(b"!") * 1_000)
    ahead.add(received(session, opened(3) + much), 0.0)
    assert 3 in {stream.id for stream, _, _ in ahead.take(0.0)}


def test_a_new_call_of_any_length_is_handled_turn_by_turn_and_in_order():
    session, turns = greeted_session(), Turns()
    ahead = ReadAhead(turns)
    data = opened(1) + wire.data(1, wire.message(b"!") * 1_000, end=True)
    fed = received(session, data)
    ahead.add(fed, 0.0)
    taken = []
    while ahead:
        events = ahead.take(0.0)
        begin(events)
        assert len(events) <= 64
        taken += events
    assert taken == fed
    assert turns.ahead == 0


def test_of_large_messages_few_are_handled_in_a_turn():
    session, ahead = greeted_session(), ReadAhead(Turns())
    large = wire.message(b"x" * 100_000)
    for call in (1, 3, 5, 7):
        pieces = [large[at : at + wire.MAX_FRAME] for at in range(0, len(large), wire.MAX_FRAME)]
        frames = b"".join(wire.data(call, piece) for piece in pieces)
        ahead.add(session.receive(wire.headers(call) + frames), 0.0)
    assert [number for number, _ in told(ahead.take(0.0))] == [1, 1, 3, 3, 5, 5]


def test_what_counts_is_what_a_call_takes_with_its_headers_and_a_message_that_has_not_ended():
    turns, path = Turns(), b"/" + b"x" * 10_000
    session, ahead = greeted_session(), ReadAhead(turns)
    ahead.add(session.receive(wire.headers(1, wire.request(path=path))), 0.0)
    assert len(path) < turns.ahead < 2 * len(path)
    begun = wire.message(bytes(4 << 20))[: 2 << 20]
    ahead.add(received(session, wire.data(1, begun)), 0.0)
    assert turns.ahead > len(begun)


def test_a_lost_connection_leaves_nothing_but_the_begun_calls_that_were_closed():
    session, turns = greeted_session(), Turns()
    ahead = ReadAhead(turns)
    begin(session.receive(opened(1, 3)))
    ahead.add(session.receive(wire.reset(1) + wire.data(3, wire.message(b"!")) + opened(5)), 0.0)
    assert [stream.id for stream in ahead.drop()] == [1]
    assert not ahead
    assert turns.ahead == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["message", "reset"]), st.sampled_from(CALLS)),
            st.tuples(st.just("take"), st.floats(0, 2)),
        ),
        max_size=40,
    )
)
def test_every_call_gets_all_of_its_events_in_order_or_was_given_up_before_it_began(steps):
    session, turns = greeted_session(), Turns()
    ahead, now = ReadAhead(turns), 0.0
    fed, taken, streams = [], [], {}

    def receive(data):
        events = session.receive(data)
        streams.update({stream.id: stream for stream, _, _ in events})
        fed.extend(told(events))
        ahead.add(events, now)

    def take():
        events = ahead.take(now)
        begin(events)
        taken.extend(told(events))

    receive(b"".join(map(wire.headers, CALLS)))
    for kind, value in steps:
        if kind == "take":
            now += value
            take()
        elif not streams[value].closed:
            receive(wire.reset(value) if kind == "reset" else wire.data(value, wire.message(b"?")))
    while ahead:
        take()
    for call in CALLS:
        got = [event for number, event in taken if number == call]
        came = [event for number, event in fed if number == call]
        assert got == came or (not got and came[-1] == CLOSED)
    assert turns.ahead == 0


async def test_all_connections_together_read_ahead_so_far_and_no_further(serve, director):
    long = wire.request(content_type=b"application/grpc;" + b"x" * 3_900)
    name = wire.header(b"content-type", b"")[1:-1]
    first = long.replace(b"\x00" + name, b"\x40" + name)  # kept in the peer's table
    again = wire.request(content_type=None) + b"\xbe"  # and from there: RFC 7541 §6.1
    calls, most = range(3, 6_003, 2), 0
    async with serve(director) as (server, _), AsyncExitStack() as stack:
        turns = server._listener.turns

        def watch():
            nonlocal most
            most = max(most, turns.ahead)
            if director.opened < 4 * 3_001:
                loop.call_soon(watch)

        loop = asyncio.get_running_loop()
        loop.call_soon(watch)
        peers = [await stack.enter_async_context(greeted(server)) for _ in range(4)]
        flood = b"".join(wire.headers(each, again) for each in calls)
        for peer in peers:
            peer.say(wire.headers(1, first), flood)
        await until(lambda: director.opened == 4 * 3_001)
        assert 31 << 20 < most < 34 << 20
        assert turns.ahead == 0


async def test_a_connection_that_waits_for_turns_is_not_silent(serve, director):
    first, again = wire.remembered()
    async with serve(director) as (server, _), greeted(server) as peer:
        (connection,) = server._listener._connections
        peer.say(wire.headers(1, first))
        await until(lambda: director.opened == 1)
        peer.say(b"".join(wire.headers(each, again) for each in range(3, 8_003, 2)))
        await until(lambda: director.opened > 1)
        for _ in range(3):  # as often as a silent peer has for an answer
            connection._keepalive()
        assert director.opened < 4_001
        await until(lambda: director.opened == 4_001)
        await peer.works()


async def test_a_connection_that_waits_for_turns_is_not_read_on(serve, director):
    first, again = wire.remembered()
    flood = b"".join(wire.headers(each, again) for each in range(3, 4_003, 2))
    much, most = wire.frame(99, 0, b"x" * 16_000) * 300, 0  # which nobody knows
    async with serve(director) as (server, _), greeted(server) as peer:
        (connection,) = server._listener._connections
        peer.say(wire.headers(1, first), flood, much)
        while director.opened < 2_001:
            most = max(most, len(connection._unread))
            await asyncio.sleep(0)
        assert most == 1
        await peer.works()


async def test_calls_that_are_given_up_while_they_wait_are_never_begun(serve, director):
    first, again = wire.remembered()
    message = wire.message(GET.SerializeToString())
    calls = range(3, 1_003, 2)
    async with serve(director) as (server, _), greeted(server, window=WIDE) as peer:
        peer.say(wire.window_update(0, WIDE), wire.headers(1, first), wire.data(1, message))
        await peer.replied(1, 1)
        peer.say(
            b"".join(wire.headers(each, again) + wire.data(each, message) for each in calls),
            b"".join(map(wire.reset, calls)),
        )
        peer.begin(1_003, GET)
        await peer.replied(1_003, 1)
        await until(lambda: server.streams == 2)
        assert director.opened < len(calls) / 4
