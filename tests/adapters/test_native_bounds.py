"""What peers of the native transport may cost: frames, connections, streams, and turns."""

import asyncio
import re
from contextlib import AsyncExitStack

import pytest
from structlog.testing import capture_logs

from epp.adapters.extproc.grpc_listener import GrpcListener
from epp.adapters.extproc.limits import PeerLimits, TokenBucket
from epp.adapters.extproc.transports import server_class
from epp.adapters.tls import certificate
from epp.protocol.extproc.record import Outcome
from epp.system.line_quota import LineQuota
from tests.adapters.ext_proc_peer import Director, body, head
from tests.adapters.raw_peer import GET, LARGE, WIDE, connected, greeted, serves
from tests.native import wire
from tests.native.built import needs_native
from tests.native.wire import Code, Kind
from tests.tasks import until

pytestmark = needs_native


@pytest.fixture
def transport():
    return server_class("native")


PRIORITY = wire.frame(Kind.PRIORITY, 1, bytes(5))


class TestAbuse:
    @pytest.mark.parametrize(
        "again",
        [
            pytest.param(lambda _: wire.ping(), id="ping"),
            pytest.param(lambda _: wire.settings(), id="settings"),
            pytest.param(lambda _: PRIORITY[:5] + b"\0\0\0\3" + PRIORITY[9:], id="priority"),
            pytest.param(lambda _: wire.data(1, b""), id="empty data"),
            pytest.param(lambda at: wire.headers(at) + wire.reset(at), id="rapid reset"),
            pytest.param(
                lambda at: wire.headers(at) + wire.window_update(at, (1 << 31) - 1),
                id="reset provoked",
            ),
            pytest.param(lambda at: wire.headers(at, end=True), id="no message"),
            pytest.param(
                lambda at: wire.headers(at, wire.request(method=b"PUT"), end=True), id="405"
            ),
            pytest.param(lambda at: wire.headers(at, wire.request(path=b"/")), id="no such method"),
            pytest.param(
                lambda at: wire.headers(at) + wire.data(at, wire.message(b"\xff")), id="garbage"
            ),
        ],
    )
    async def test_frames_that_make_work_are_limited(self, serve, director, again):
        little = PeerLimits(abuse_burst=200, abuse_rate=1)
        with capture_logs() as logs:
            async with serve(director, limits=little) as (server, _), greeted(server) as peer:
                peer.say(wire.headers(1))
                for number in range(3, 603, 2):
                    peer.say(again(number))
                await peer.lost()
                assert peer.codes(Kind.GOAWAY) == [Code.ENHANCE_YOUR_CALM]
                await until(lambda: server.streams == 0)
                assert len(director.ends()) == director.opened
                await serves(server)
        assert [line["event"] for line in logs] == ["connection.left"]

    async def test_headers_in_crumbs(self, server, peer):
        block = wire.request()
        peer.say(wire.frame(Kind.HEADERS, 1, block[:1]))
        for _ in range(30_000):
            peer.say(wire.frame(Kind.CONTINUATION, 1, b""))
        await peer.lost()
        await serves(server)

    async def test_resets_of_answered_streams_are_not_limited(self, serve, director):
        """Envoy resets every stream that it is done with: more than nghttp2 takes by itself."""
        little = PeerLimits(abuse_burst=50, abuse_rate=0)
        async with serve(director, limits=little) as (server, _), greeted(server) as peer:
            peer.say(wire.window_update(0, WIDE))
            for start in range(1, 3_001, 200):
                batch = range(start, start + 200, 2)
                for stream in batch:
                    peer.begin(stream, GET)
                await peer.read_until(lambda batch=batch: all(peer.replies.get(at) for at in batch))
                peer.say(*(wire.reset(stream) for stream in batch))
            await peer.works()
            await until(lambda: server.streams == 0)
            assert director.ends() == [Outcome.ABORTED] * 1_500

    def test_a_bucket_fills_again(self):
        bucket = TokenBucket(burst=10, rate=2)
        assert bucket.take(10, now=100)
        assert bucket.take(4, now=102)
        assert not bucket.take(1, now=102)
        assert bucket.take(9, now=200)
        assert not bucket.take(2, now=200)


class TestRoom:
    async def test_no_more_connections_than_there_is_room_for(self, serve, director):
        with capture_logs() as logs:
            async with serve(director, limits=PeerLimits(max_connections=3)) as (server, _):
                async with AsyncExitStack() as stack:
                    peers = [await stack.enter_async_context(greeted(server)) for _ in range(3)]
                    for _ in range(20):
                        async with connected(server, wire.greeting()) as late:
                            await late.lost()
                    for peer in peers:
                        await peer.works()
                await until(lambda: not server._listener._connections)
                await serves(server)
        assert [(line["event"], line["more"]) for line in logs] == [("connections.full", 0)]

    async def test_no_more_streams_than_there_is_room_for(self, serve, director):
        async with (
            serve(director, limits=PeerLimits(max_open_streams=4)) as (server, _),
            greeted(server) as peer,
            greeted(server) as other,
        ):
            for at in (1, 3):
                peer.begin(at, head(), body())
                other.begin(at, head(), body())
            await until(lambda: server.streams == 4)
            other.begin(5, GET)
            assert b"8" in (await other.heard(Kind.HEADERS, 5))[-40:]
            peer.say(wire.reset(1))
            await peer.works()
            other.begin(7, GET)
            await other.replied(7, 1)

    async def test_one_line_tells_of_many_that_were_given_up(self, serve, director):
        with capture_logs() as logs:
            async with serve(director) as (server, _):
                for _ in range(20):
                    async with connected(server, b"GET / HTTP/1.1\r\n\r\n" + bytes(24)) as peer:
                        await peer.lost()
        (line,) = logs
        assert line["event"] == "connection.left"
        assert line["reason"] == "Received bad client magic byte string"

    @pytest.mark.parametrize(
        ("tls", "said", "told"),
        [
            (None, wire.client_hello(), "it speaks TLS, and this port does not: "),
            (certificate(None), wire.PREFACE + wire.settings(), "it speaks plaintext, and this "),
        ],
        ids=["tls to plaintext", "plaintext to tls"],
    )
    async def test_one_line_tells_of_peers_with_tls_on_one_side_alone(
        self, serve, director, tls, said, told
    ):
        with capture_logs() as logs:
            async with serve(director, tls=tls) as (server, _):
                for _ in range(5):
                    async with connected(server, said) as peer:
                        await peer.lost()
        (line,) = logs
        assert line["event"] == "connection.left"
        assert line["reason"].startswith(told)
        assert f"--secure-serving={'true' if tls is None else 'false'}" in line["reason"]
        assert re.fullmatch(r"127\.0\.0\.1:\d+", line["peer"])

    @pytest.mark.parametrize(
        ("address", "told"),
        [(("10.0.0.7", 9), "10.0.0.7:9"), (("::1", 9, 0, 0), "[::1]:9"), (None, "None")],
    )
    async def test_a_peer_is_told_by_its_host_and_port(self, address, told):
        with capture_logs() as logs:
            GrpcListener({}, PeerLimits()).warn_left(address, "it is odd")
        assert [line["peer"] for line in logs] == [told]

    def test_a_line_says_how_many_were_left_out(self):
        quota = LineQuota(interval=10)
        assert [quota.take("a", now) for now in (0, 1, 9.9)] == [0, None, None]
        assert quota.take("b", 9.9) == 0
        assert [quota.take("a", now) for now in (10, 11, 25)] == [2, None, 1]


class Failing(Director):
    """Fails at one exchange, amid many."""

    def exchange(self, now):
        made = super().exchange(now)
        if self.opened == 1_000:
            raise ZeroDivisionError
        return made


class TestFairness:
    async def test_a_flood_in_one_read_delays_no_other(self, director, server):
        first, again = wire.remembered()
        async with greeted(server) as heavy, greeted(server) as light:
            heavy.say(wire.headers(1, first), wire.data(1, wire.message(GET.SerializeToString())))
            await heavy.replied(1, 1)
            heavy.say(b"".join(wire.headers(at, again) for at in range(3, 16_003, 2)))
            light.begin(1, GET)
            await light.replied(1, 1)
            assert director.opened < 4_000, "of 8,000 that came before"
            await heavy.works()
            await until(lambda: director.opened == 8_002)
            await until(lambda: not server._listener.turns.crowded)

    async def test_a_connection_that_is_left_while_it_waits(self, serve, director):
        first, again = wire.remembered()
        with capture_logs() as logs:
            little = PeerLimits(abuse_burst=200, abuse_rate=0)
            async with serve(director, limits=little) as (server, _), greeted(server) as peer:
                flood = (wire.headers(at, again) for at in range(3, 4_003, 2))
                peer.say(wire.headers(1, first), *flood, wire.ping() * 202)
                await peer.lost()
                assert peer.codes(Kind.GOAWAY) == [Code.ENHANCE_YOUR_CALM]
                await until(lambda: server.streams == 0)
        assert [line["event"] for line in logs] == ["connection.left"]

    async def test_a_turn_that_fails_ends_its_connection_alone(self, serve):
        director, (first, again) = Failing(), wire.remembered()
        with capture_logs() as logs:
            async with serve(director) as (server, _), greeted(server) as peer:
                flood = (wire.headers(at, again) for at in range(3, 4_003, 2))
                peer.say(wire.headers(1, first), *flood)
                await peer.lost()
                await serves(server)
                await until(lambda: server.streams == 0)
        assert [line["event"] for line in logs] == ["connection.failed"]

    async def test_streams_of_a_lost_connection_end_by_turns(self, director, server):
        first, again = wire.remembered()
        ended, most = 0, 0

        def watch():
            nonlocal ended, most
            most = max(most, len(director.records) - ended)
            ended = len(director.records)
            if ended < 9_900:
                loop.call_soon(watch)

        loop = asyncio.get_running_loop()
        async with greeted(server) as peer:
            peer.say(wire.headers(1, first))
            peer.say(b"".join(wire.headers(at, again) for at in range(3, 19_801, 2)))
            await until(lambda: server.streams == 9_900)
        loop.call_soon(watch)
        await until(lambda: server.streams == 0)
        assert most < 9_000
        assert director.ends() == [Outcome.ABORTED] * 9_900

    async def test_small_streams_pass_a_large_one(self, server):
        async with greeted(server, window=WIDE) as peer:
            peer.say(wire.window_update(0, WIDE))
            peer.begin(1, head(), body(LARGE))
            peer.begin(3, GET)
            await peer.replied(3, 1)
            assert peer.came(1) < len(LARGE)

    async def test_many_connections(self, director, server):
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(greeted(server)) for _ in range(50)]
            for peer in peers:
                peer.begin(1, head(), body())
            for peer in peers:
                await peer.replied(1, 2)
            assert server.streams == 50
