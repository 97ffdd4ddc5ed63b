"""The native transport's flow control, its patience, and its goodbyes."""

import asyncio
import socket
import ssl
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from epp.adapters.extproc.limits import PeerLimits
from epp.adapters.extproc.transports import server_class
from epp.adapters.tls import certificate
from epp.protocol.extproc.record import Outcome
from tests.adapters.ext_proc_peer import (
    CHAT,
    DEADLINE,
    DECISION,
    body,
    head,
    response_body,
    response_head,
    streamed,
)
from tests.adapters.raw_peer import GET, LARGE, WIDE, RawPeer, connected, greeted, pieces, serves
from tests.native import wire
from tests.native.built import needs_native
from tests.native.wire import Code, Kind
from tests.tasks import until

pytestmark = needs_native


@pytest.fixture
def transport():
    return server_class("native")


class TestWindowsOfThePeer:
    async def test_no_more_is_sent_than_the_window_allows(self, server):
        async with greeted(server, window=0) as peer:
            peer.begin(1, head(), body(LARGE))
            await peer.heard(Kind.HEADERS, 1)
            await peer.works()
            allowed = 0
            for grant in (1, 5, 9_000, 16_384, 16_385):
                peer.say(wire.window_update(1, grant))
                allowed += grant
                await peer.read_until(lambda allowed=allowed: peer.came(1) == allowed)
                await peer.works()
                assert peer.came(1) == allowed
            peer.say(wire.window_update(1, WIDE))
            await peer.read_until(lambda: peer.came(1) >= 65_535)
            await peer.works()
            assert peer.came(1) == 65_535, "the connection's window"
            peer.say(wire.window_update(0, WIDE))
            await peer.read_until(
                lambda: pieces(peer.replies[1])[-1:] and pieces(peer.replies[1])[-1][1]
            )
            assert b"".join(data for data, _ in pieces(peer.replies[1])) == LARGE

    async def test_what_one_write_does_not_take_is_written_too(self, server):
        async with greeted(server, window=0) as peer:
            for stream in (1, 3):
                peer.begin(stream, head(), body(CHAT[:-1] + b" " * 900_000 + b"}"))
                await peer.heard(Kind.HEADERS, stream)
            await peer.works()
            peer.say(wire.window_update(0, WIDE), wire.settings(window=WIDE))
            await peer.read_until(lambda: peer.came(1) + peer.came(3) > 1_800_000)

    async def test_a_window_that_closes_and_opens(self, server):
        async with greeted(server, window=100) as peer:
            peer.begin(1, head(), body())
            await peer.read_until(lambda: peer.came(1) == 100)
            peer.say(wire.settings(window=50))  # now it is 50 bytes below nothing
            await peer.works()
            peer.say(wire.window_update(1, 60))
            await peer.read_until(lambda: peer.came(1) == 110)
            peer.say(wire.settings(window=1 << 20))
            assert len(await peer.replied(1, 2)) == 2

    async def test_a_stream_that_is_not_read_gets_no_window(self, director, server):
        """Its replies wait, so its window stays shut; others go on."""
        async with greeted(server, window=10_000) as peer:
            peer.begin(1, head(), body())
            peer.tell(1, response_head())
            chunk = response_body(b"x" * 60_000, end=False)
            window, sent = 1 << 20, 0
            while window - sent > 70_000 and sent < 4 << 20:
                for _ in range((window - sent) // 70_000):
                    peer.tell(1, chunk)
                    sent += chunk.ByteSize() + 5
                await peer.works()
                given = peer.seen(Kind.WINDOW_UPDATE, 1)
                window = (1 << 20) + sum(int.from_bytes(each, "big") for each in given)
            assert sent <= 3 << 20
            peer.begin(3, GET)
            await peer.replied(3, 1)
            peer.say(wire.window_update(0, WIDE), wire.window_update(1, WIDE))
            await peer.read_until(lambda: len(peer.replies[1]) > sent // 60_100)
            seen = len(peer.seen(Kind.WINDOW_UPDATE, 1))
            peer.tell(1, chunk, chunk, chunk, chunk, chunk, chunk, chunk, chunk, chunk)
            await peer.read_until(lambda: len(peer.seen(Kind.WINDOW_UPDATE, 1)) > seen)

    async def test_a_peer_that_lets_too_much_wait_is_disconnected(self, serve, director):
        little = PeerLimits(max_queued=1_000_000)
        with capture_logs() as logs:
            async with serve(director, limits=little) as (server, _):
                async with greeted(server, window=0) as peer:
                    for stream in (1, 3, 5):
                        peer.begin(stream, head(), body(CHAT[:-1] + b" " * 600_000 + b"}"))
                    await peer.lost()
                await until(lambda: server.streams == 0)
                await serves(server)
        assert "connection.left" in [line["event"] for line in logs]


class TestWindowsGiven:
    async def test_while_a_decision_is_pending_one_window_is_received(self, serve, director):
        director.answer = None
        async with serve(director) as (server, _), greeted(server, window=WIDE) as peer:
            peer.say(wire.window_update(0, WIDE))
            peer.begin(1, head(path="/v1/audio/transcriptions"))
            await until(lambda: director.opened)
            await peer.works()
            large = b"x" * (1 << 19)
            peer.tell(1, body(large, end=False))
            await peer.works()
            assert peer.seen(Kind.WINDOW_UPDATE, 1) == []
            director.pending[0].decided(DECISION)
            await peer.heard(Kind.WINDOW_UPDATE, 1)
            replies = await peer.replied(1, 1 + -(-len(large) // 62_000))
            assert b"".join(streamed(each)[0] for each in replies[1:]) == large

    async def test_more_than_a_window_is_an_error(self, serve, director):
        director.answer = None
        small = PeerLimits(stream_window=1_000)
        async with serve(director, limits=small) as (server, _):
            async with greeted(server) as peer:
                peer.begin(1, head(), body())
                await until(lambda: director.opened)
                await peer.works()
                peer.say(wire.data(1, bytes(1_001)))
                await peer.read_until(lambda: peer.gone or peer.codes(Kind.RST_STREAM, 1))
                codes = peer.codes(Kind.RST_STREAM, 1) + peer.codes(Kind.GOAWAY)
                assert codes == [Code.FLOW_CONTROL_ERROR]
            await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]

    async def test_a_body_of_many_windows(self, serve, director):
        small = PeerLimits(stream_window=70_000)
        async with serve(director, limits=small) as (_, channel):
            from tests.adapters.ext_proc_peer import Peer  # noqa: PLC0415

            peer = Peer(channel)
            await peer.send(head(), body(LARGE))
            found: list[tuple[bytes, bool]] = []
            while not found or not found[-1][1]:
                found += pieces([await peer.receive()])
            assert b"".join(data for data, _ in found) == LARGE


class TestPeersThatDoNotRead:
    async def test_a_peer_that_does_not_read_delays_no_other(self, serve, director):
        """What it does not take stays in its own buffers, bounded, until it is given up."""
        quick = PeerLimits(ping_after=0.3, ping_timeout=0.3)
        async with serve(director, limits=quick) as (server, _):
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.connect(("127.0.0.1", server.port))
                deaf.setblocking(False)
                wide = wire.greeting(window=(1 << 31) - 1) + wire.window_update(0, WIDE)
                said = [wide, wire.acknowledged()]
                stream = 1
                message = wire.message(head().SerializeToString())
                message += wire.message(body(LARGE).SerializeToString())
                blocked = False
                async with asyncio.timeout(DEADLINE):
                    while not blocked and stream < 400:
                        said += [wire.headers(stream), wire.data(stream, message)]
                        blocked = not await _pushed(deaf, b"".join(said))
                        said, stream = [], stream + 2
                assert blocked
                await serves(server)
                await until(lambda: server.streams == 0)
            await serves(server)

    async def test_a_peer_that_answers_pings_stays(self, serve, director):
        quick = PeerLimits(ping_after=0.02, ping_timeout=3)
        async with serve(director, limits=quick) as (server, _), greeted(server) as peer:
            for count in (1, 2):
                await peer.read_until(lambda count=count: len(peer.asked) >= count)
                peer.say(wire.frame(Kind.PING, 0, peer.asked[count - 1], wire.Flag.ACK))
            peer.begin(1, GET)
            await peer.replied(1, 1)
            server.drain()
            assert await given_up(peer) == [(1 << 31) - 1, 1]

    async def test_a_peer_without_preface_is_disconnected(self, serve, director):
        quick = PeerLimits(ping_after=0.02, ping_timeout=0.02)
        async with serve(director, limits=quick) as (server, _), connected(server, b"") as peer:
            await peer.lost()


async def _pushed(sock, data):
    """Send; whether it went within a moment."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.get_running_loop().sock_sendall(sock, data)
            return True
    return False


async def given_up(peer):
    """Hear both goodbyes of a server, and give the last streams that they name."""
    await peer.read_until(lambda: peer.seen(Kind.GOAWAY) and peer.asked)
    peer.say(wire.frame(Kind.PING, 0, peer.asked[-1], wire.Flag.ACK))
    await peer.read_until(lambda: len(peer.seen(Kind.GOAWAY)) == 2)
    return [int.from_bytes(payload[:4], "big") for payload in peer.seen(Kind.GOAWAY)]


class TestGoodbyes:
    async def test_a_stopping_server_accepts_streams_under_way(self, director, server, peer):
        peer.begin(1, head(), body())
        await peer.replied(1, 2)
        stopping = asyncio.create_task(server.stop(DEADLINE))
        await peer.heard(Kind.GOAWAY)
        assert int.from_bytes(peer.seen(Kind.GOAWAY)[0][:4], "big") == (1 << 31) - 1
        peer.begin(3, GET)  # sent before the peer could know
        await peer.replied(3, 1)
        await peer.read_until(lambda: peer.asked)
        peer.say(wire.frame(Kind.PING, 0, peer.asked[0], wire.Flag.ACK))
        await peer.read_until(lambda: len(peer.seen(Kind.GOAWAY)) == 2)
        assert int.from_bytes(peer.seen(Kind.GOAWAY)[1][:4], "big") == 3
        peer.begin(5, GET)
        peer.tell(1, response_head(end=True))
        peer.tell(3, response_head(end=True))
        await peer.lost()
        assert {1, 3} <= peer.ended
        assert 5 not in peer.replies
        await asyncio.wait_for(stopping, DEADLINE)
        assert director.ends() == [Outcome.COMPLETED] * 2
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", server.port)

    async def test_a_server_that_stops_at_once_says_what_it_took(self, server, peer):
        peer.begin(1, head(), body())
        await peer.replied(1, 2)
        await asyncio.wait_for(server.stop(0), DEADLINE)
        await peer.lost()
        assert [payload[:4] for payload in peer.seen(Kind.GOAWAY)][-1] == b"\0\0\0\1"

    async def test_a_draining_server_gives_up_each_connection_in_order(
        self, director, server, peer
    ):
        """A gateway that has not heard of it connects anew, and is served."""
        peer.begin(1, head(), body())
        await peer.replied(1, 2)
        server.drain()
        async with greeted(server) as late:
            late.begin(1, head(), body())
            await late.replied(1, 2)
            for each in (peer, late):
                assert await given_up(each) == [(1 << 31) - 1, 1]
                each.tell(1, response_head(end=True))
                await each.lost()
                assert 1 in each.ended
                assert len(each.seen(Kind.GOAWAY)) == 2
        assert director.ends() == [Outcome.COMPLETED] * 2
        await serves(server)

    @pytest.mark.parametrize("answered", [True, False])
    async def test_a_keepalive_ping_is_not_the_round_trip_of_a_goodbye(
        self, server, peer, answered
    ):
        (connection,) = server._listener._connections
        for _ in range(2):  # as often as a peer is silent before it is asked
            connection._keepalive()
        await peer.read_until(lambda: peer.asked)
        if answered:
            peer.say(wire.frame(Kind.PING, 0, peer.asked[0], wire.Flag.ACK))
            await peer.works()
            connection._keepalive()
        server.drain()
        if not answered:
            peer.say(wire.frame(Kind.PING, 0, peer.asked[0], wire.Flag.ACK))
        peer.begin(1, GET)
        await peer.replied(1, 1)
        assert len(peer.seen(Kind.GOAWAY)) == 1
        await peer.read_until(lambda: len(peer.asked) == 2)
        assert await given_up(peer) == [(1 << 31) - 1, 1]

    async def test_a_peer_that_goes_away(self, director, server, peer):
        peer.begin(1, head(), body())
        await peer.replied(1, 2)
        peer.say(wire.goaway())
        peer.tell(1, response_head(end=True))
        await peer.lost()
        assert 1 in peer.ended
        assert director.ends() == [Outcome.COMPLETED]

    async def test_a_peer_that_hangs_up_amid_everything(self, director, server):
        for said in (1, 20, 60, 200):
            async with greeted(server) as peer:
                request = wire.headers(1) + wire.data(1, wire.message(head().SerializeToString()))
                peer.say(request[:said])
        await until(lambda: server.streams == 0)
        assert set(director.ends()) <= {Outcome.ABORTED}
        assert len(director.ends()) == director.opened

    async def test_a_stop_while_streams_of_a_lost_connection_end(self, director, server):
        first, again = wire.remembered()
        async with greeted(server) as peer:
            peer.say(wire.headers(1, first))
            peer.say(b"".join(wire.headers(at, again) for at in range(3, 19_801, 2)))
            await until(lambda: server.streams == 9_900)
            peer._writer.transport.abort()
            async with asyncio.timeout(DEADLINE):
                while server.streams == 9_900:
                    await asyncio.sleep(0)
            await asyncio.wait_for(server.stop(0), DEADLINE)
        assert director.ends() == [Outcome.ABORTED] * 9_900

    async def test_a_reset_reaches_the_exchange_at_once(self, director, server, peer):
        peer.begin(1, head(), body())
        await peer.replied(1, 2)
        peer.say(wire.reset(1))
        await peer.works()
        assert director.ends() == [Outcome.ABORTED]


TRUSTING = ssl.create_default_context()
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE


class TestTls:
    async def test_a_goodbye_is_not_logged(self, serve, director, caplog):
        async with serve(director, tls=certificate(None)) as (server, _):
            async with connected(server, wire.greeting(), ssl=TRUSTING) as peer:
                peer.begin(1, GET)
                await peer.replied(1, 1)
            # It has sent a close_notify (RFC 8446 §6.1), and waited for the server's.
            await until(lambda: server.streams == 0)
        assert caplog.records == []

    async def test_without_alpn_and_with_garbage(self, serve, director):
        async with serve(director, tls=certificate(None)) as (server, _):
            async with connected(server, b"", ssl=TRUSTING) as peer:
                assert isinstance(peer, RawPeer)
                peer.say(wire.greeting())
                peer.begin(1, GET)
                await peer.replied(1, 1)
            async with connected(server, b"") as peer:
                peer.say(wire.greeting())
                await peer.lost()
