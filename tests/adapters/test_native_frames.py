"""The native transport against peers that break HTTP/2, or use its odd corners."""

import struct

import pytest

from epp.adapters.extproc.limits import PeerLimits
from epp.adapters.extproc.transports import server_class
from epp.protocol.extproc.record import Outcome
from tests.adapters.ext_proc_peer import body, head, kind, response_body, response_head
from tests.adapters.raw_peer import GET, connected, greeted, serves
from tests.native import wire
from tests.native.built import needs_native
from tests.native.wire import PATH, Code, Flag, Kind
from tests.tasks import until

pytestmark = needs_native


@pytest.fixture
def transport():
    return server_class("native")


class TestGreetings:
    @pytest.mark.parametrize(
        "hello",
        [
            b"GET / HTTP/1.1\r\nhost: epp\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"\0" * 100,
            wire.PREFACE[:-1] + b"X",
            wire.settings() + wire.PREFACE,
        ],
    )
    async def test_no_preface(self, server, hello):
        async with connected(server, hello) as peer:
            await peer.lost()
        await serves(server)

    async def test_the_server_greets_a_peer_that_has_said_nothing(self, server):
        async with connected(server, b"") as peer:
            await peer.heard(Kind.SETTINGS)

    @pytest.mark.parametrize("first", [wire.ping(), wire.headers(1), wire.acknowledged()])
    async def test_no_settings_after_the_preface(self, server, first):
        async with connected(server, wire.PREFACE + first) as peer:
            await peer.lost()
            assert peer.codes(Kind.GOAWAY) == [Code.PROTOCOL_ERROR]
        await serves(server)

    async def test_a_byte_at_a_time(self, director, server):
        async with connected(server, b"") as peer:
            said = [wire.message(each.SerializeToString()) for each in (head(), body())]
            request = wire.greeting() + wire.headers(1) + wire.data(1, b"".join(said))
            for at in range(len(request)):
                peer.say(request[at : at + 1])
                await peer._writer.drain()
            replies = await peer.replied(1, 2)
            assert [kind(reply) for reply in replies] == ["request_headers", "request_body"]

    async def test_each_byte_of_a_message_in_a_frame_of_its_own(self, server, peer):
        data = wire.message(head().SerializeToString()) + wire.message(body().SerializeToString())
        peer.say(wire.headers(1), *(wire.data(1, data[at : at + 1]) for at in range(len(data))))
        assert len(await peer.replied(1, 2)) == 2

    async def test_settings_announce_the_limits(self, peer):
        pairs = dict(struct.iter_unpack(">HI", peer.seen(Kind.SETTINGS)[0]))
        assert pairs == {3: 10_000, 4: 1 << 20, 5: 1 << 16, 6: 32 << 10}
        await peer.works()


BLOCK = wire.request()


class TestBrokenConnections:
    """Each of these ends the connection with a code, and nobody else's."""

    @pytest.mark.parametrize(
        ("said", "code"),
        [
            (wire.frame(Kind.DATA, 1, b"x" * 65_537), Code.FRAME_SIZE_ERROR),
            (wire.frame(Kind.PING, 0, b"x" * (1 << 17)), Code.FRAME_SIZE_ERROR),
            (wire.frame(Kind.PING, 0, b"1234567"), Code.FRAME_SIZE_ERROR),
            (wire.frame(Kind.PING, 1, b"12345678"), Code.PROTOCOL_ERROR),
            (wire.frame(Kind.SETTINGS, 0, b"12345"), Code.FRAME_SIZE_ERROR),
            (wire.frame(Kind.SETTINGS, 0, b"123456", Flag.ACK), Code.FRAME_SIZE_ERROR),
            (wire.frame(Kind.SETTINGS, 3), Code.PROTOCOL_ERROR),
            (wire.settings(window=1 << 31), Code.FLOW_CONTROL_ERROR),
            (wire.settings(frame=100), Code.PROTOCOL_ERROR),
            (wire.settings(push=2), Code.PROTOCOL_ERROR),
            (wire.frame(Kind.DATA, 0, b"x"), Code.PROTOCOL_ERROR),
            (wire.data(1, b"x"), Code.PROTOCOL_ERROR),
            (wire.headers(2), Code.PROTOCOL_ERROR),
            (wire.headers(0), Code.PROTOCOL_ERROR),
            (wire.headers(1, b"\xff\xff\xff\xff\xff\xff"), Code.COMPRESSION_ERROR),
            (wire.headers(1, b"\xfe"), Code.COMPRESSION_ERROR),
            (wire.frame(Kind.HEADERS, 1, b"\x05ab", Flag.PADDED), Code.PROTOCOL_ERROR),
            (wire.reset(1), Code.PROTOCOL_ERROR),
            (wire.frame(Kind.RST_STREAM, 1, b"123"), Code.FRAME_SIZE_ERROR),
            (wire.window_update(0, 0), Code.PROTOCOL_ERROR),
            (wire.window_update(0, (1 << 31) - 1), Code.FLOW_CONTROL_ERROR),
            (wire.window_update(1, 1), Code.PROTOCOL_ERROR),
            (wire.frame(Kind.PUSH_PROMISE, 1, b"\0\0\0\2" + BLOCK, 4), Code.PROTOCOL_ERROR),
            (wire.frame(Kind.CONTINUATION, 1, BLOCK, 4), Code.PROTOCOL_ERROR),
            (wire.frame(Kind.HEADERS, 1, BLOCK) + wire.ping(), Code.PROTOCOL_ERROR),
            (
                wire.frame(Kind.HEADERS, 1, BLOCK[:9])
                + wire.frame(Kind.CONTINUATION, 3, BLOCK[9:], 4),
                Code.PROTOCOL_ERROR,
            ),
            (wire.frame(Kind.GOAWAY, 1, bytes(8)), Code.PROTOCOL_ERROR),
            (wire.frame(Kind.GOAWAY, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        ],
    )
    async def test_a_broken_frame(self, director, server, said, code):
        async with greeted(server) as peer:
            peer.begin(7, head(), body())  # a stream that is open already
            await peer.replied(7, 2)
        async with greeted(server) as peer:
            peer.say(said)
            await peer.lost()
            assert peer.codes(Kind.GOAWAY) == [code]
        await serves(server)
        await until(lambda: server.streams == 0)
        assert len(director.ends()) == director.opened

    async def test_the_streams_of_a_broken_connection_end(self, director, server, peer):
        for stream in (1, 3, 5):
            peer.begin(stream, head(), body())
        await peer.replied(5, 2)
        peer.say(wire.headers(1, b"\xff\xff\xff\xff\xff\xff"))
        await peer.lost()
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED] * 3


class TestBrokenStreams:
    """Each of these ends one stream; the connection and its other streams go on."""

    @pytest.mark.parametrize(
        "block",
        [
            wire.request(more=[(b"Upper", b"case")]),
            wire.request(path=None),
            wire.request(method=None),
            wire.request(more=[(b":path", b"/late")]),
            wire.request(more=[(b"connection", b"keep-alive")]),
            wire.request(more=[(b"te", b"gzip")]),
            wire.request(more=[(b"content-length", b"-1")]),
            wire.request(more=[(b"bad name", b"x")]),
        ],
    )
    async def test_malformed_headers_reset_the_stream(self, director, server, peer, block):
        peer.say(wire.headers(1, block))
        await peer.heard(Kind.RST_STREAM, 1)
        assert peer.codes(Kind.RST_STREAM, 1) == [Code.PROTOCOL_ERROR]
        peer.begin(3, GET)
        await peer.replied(3, 1)
        assert director.opened == 1

    async def test_more_or_less_than_its_content_length(self, director, server, peer):
        for stream in (1, 3):
            block = wire.request(more=[(b"content-length", b"10")])
            peer.say(wire.headers(stream, block))
        peer.say(wire.data(1, b"\0" * 11), wire.data(3, b"\0" * 5, end=True))
        for stream in (1, 3):
            await peer.heard(Kind.RST_STREAM, stream)
            assert peer.codes(Kind.RST_STREAM, stream) == [Code.PROTOCOL_ERROR]
        await until(lambda: server.streams == 0)
        await peer.works()

    @pytest.mark.parametrize(
        "block",
        [
            wire.request(more=[(b"x", b"y" * 33_000)]),
            wire.request(more=[(b"x-%d" % at, b"y" * 400) for at in range(80)]),
            # an HPACK bomb: 4,000 bytes in the table, named by one byte each
            wire.request() + b"\x40\x01x\x7f\xa1\x1e" + b"z" * 4_000 + b"\xbe" * 5_000,
        ],
    )
    async def test_header_bombs(self, director, server, peer, block):
        pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
        peer.say(wire.frame(Kind.HEADERS, 1, pieces[0], 0 if pieces[1:] else Flag.END_HEADERS))
        for piece in pieces[1:]:
            last = Flag.END_HEADERS if piece is pieces[-1] else 0
            peer.say(wire.frame(Kind.CONTINUATION, 1, piece, last))
        await peer.heard(Kind.RST_STREAM, 1)
        assert peer.codes(Kind.RST_STREAM, 1) == [Code.INTERNAL_ERROR]
        peer.begin(3, GET)
        await peer.replied(3, 1)
        assert director.opened == 1

    @pytest.mark.parametrize(
        ("how", "status"),
        [
            ({"method": b"GET"}, b"405"),
            ({"content_type": None}, b"415"),
            ({"content_type": b"application/json"}, b"415"),
            ({"content_type": b"application/grpc-web"}, b"415"),
        ],
    )
    async def test_no_grpc(self, director, server, peer, how, status):
        peer.say(wire.headers(1, wire.request(**how)))
        assert status in await peer.heard(Kind.HEADERS, 1)
        assert 1 in peer.ended
        await peer.heard(Kind.RST_STREAM, 1)
        assert peer.codes(Kind.RST_STREAM, 1) == [Code.NO_ERROR]
        assert director.opened == 0

    @pytest.mark.parametrize("kind", [b"application/grpc+proto", b"application/grpc; charset=x"])
    async def test_forms_of_grpc(self, peer, kind):
        peer.say(wire.headers(1, wire.request(content_type=kind)))
        peer.tell(1, GET)
        assert await peer.replied(1, 1)

    @pytest.mark.parametrize("path", [b"/", PATH + b"/", PATH[:-1], PATH.lower()])
    async def test_no_such_method(self, director, server, peer, path):
        peer.say(wire.headers(1, wire.request(path=path)))
        assert b"12" in await peer.heard(Kind.HEADERS, 1)
        assert director.opened == 0

    async def test_a_message_cut_off(self, director, server, peer):
        data = wire.message(head().SerializeToString())
        peer.say(wire.headers(1), wire.data(1, data[:-1], end=True))
        assert b"13" in await peer.heard(Kind.HEADERS, 1)
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]
        await peer.works()

    async def test_a_compressed_message(self, director, server, peer):
        peer.say(wire.headers(1), wire.data(1, wire.message(b"x", flag=1)))
        assert b"12" in await peer.heard(Kind.HEADERS, 1)
        await until(lambda: server.streams == 0)

    async def test_what_comes_with_the_fault_of_a_call_begins_no_other(self, director, peer):
        peer.say(wire.headers(1) + wire.data(1, wire.message(b"\xff"), end=True))
        peer.say(wire.headers(3) + wire.data(3, wire.message(b"", flag=1)) + wire.reset(3))
        await peer.read_until(lambda: 1 in peer.ended)
        await peer.works()
        assert director.opened == 2
        assert director.ends() == [Outcome.ABORTED] * 2

    async def test_frames_after_the_end_of_a_stream_are_dropped(self, director, server, peer):
        peer.begin(1, head(), body(b"no JSON"))
        await peer.read_until(lambda: 1 in peer.ended)
        await peer.heard(Kind.RST_STREAM, 1)
        assert peer.codes(Kind.RST_STREAM, 1) == [Code.NO_ERROR]
        peer.tell(1, response_head(), response_body())
        peer.say(wire.headers(1), wire.reset(1))
        await peer.works()
        assert director.opened == 1


class TestOddCorners:
    async def test_unknown_frames_are_ignored(self, peer):
        peer.say(wire.frame(0xFA, 0, b"?"), wire.frame(0xFB, 5, b"?" * 99, 0xFF))
        peer.begin(1, GET)
        assert await peer.replied(1, 1)

    async def test_padding_counts_towards_windows_only(self, peer):
        data = wire.message(GET.SerializeToString())
        padded = bytes([200]) + data + bytes(200)
        peer.say(wire.headers(1), wire.frame(Kind.DATA, 1, padded, Flag.PADDED))
        assert await peer.replied(1, 1)

    async def test_trailers_of_the_peer_are_its_end(self, director, server, peer):
        peer.begin(1, head(), body())
        peer.say(wire.headers(1, wire.header(b"x-checksum", b"1"), end=True))
        await peer.read_until(lambda: 1 in peer.ended)
        assert len(peer.replies[1]) == 2
        assert director.ends() == [Outcome.UNOBSERVED]

    async def test_priorities_are_ignored(self, peer):
        priority = struct.pack(">IB", 0x80000000 | 3, 255)
        peer.say(wire.frame(Kind.PRIORITY, 9, priority))
        block = priority + wire.request()
        peer.say(wire.frame(Kind.HEADERS, 1, block, Flag.END_HEADERS | Flag.PRIORITY))
        peer.tell(1, GET)
        assert await peer.replied(1, 1)

    async def test_a_stream_that_depends_on_itself(self, peer):
        block = struct.pack(">IB", 1, 10) + wire.request()
        peer.say(wire.frame(Kind.HEADERS, 1, block, Flag.END_HEADERS | Flag.PRIORITY))
        await peer.lost()
        assert peer.codes(Kind.GOAWAY) == [Code.PROTOCOL_ERROR]

    async def test_no_more_streams_than_announced(self, serve, director):
        few = PeerLimits(max_streams=3)
        async with serve(director, limits=few) as (server, _), greeted(server) as peer:
            for stream in (1, 3, 5, 7):
                peer.begin(stream, head(), body())
            await peer.lost()
            assert peer.codes(Kind.GOAWAY) == [Code.PROTOCOL_ERROR]
            assert director.opened == 3

    async def test_a_peer_that_does_not_know_the_limit_yet(self, serve, director):
        few = PeerLimits(max_streams=3)
        async with (
            serve(director, limits=few) as (server, _),
            connected(server, wire.greeting()) as peer,
        ):
            for stream in (1, 3, 5, 7):
                peer.begin(stream, head(), body())
            await peer.heard(Kind.RST_STREAM, 7)
            assert peer.codes(Kind.RST_STREAM) == [Code.REFUSED_STREAM]
            assert director.opened == 3
            peer.say(wire.reset(3))
            peer.begin(9, GET)
            await peer.replied(9, 1)
