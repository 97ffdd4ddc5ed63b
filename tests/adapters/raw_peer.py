"""A peer of the native transport that says any bytes it likes and sees every frame."""

import asyncio
from contextlib import asynccontextmanager, suppress

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from tests.adapters.ext_proc_peer import CHAT, DEADLINE, head, kind, streamed
from tests.native import wire
from tests.native.framing_oracle import PlainDeframer
from tests.native.wire import Code, Flag, Kind

GET = head(method="GET", path="/v1/models", end=True)
LARGE = CHAT[:-1] + b', "x": "' + b"x" * 3_000_000 + b'"}'
WIDE = 1 << 30
"""A window that nothing here fills."""


class RawPeer:
    """One connection. `frames` are all that have come, as (kind, flags, stream, payload)."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self._rest = b""
        self._deframers = {}
        self.frames = []
        self.replies = {}
        self.ended = set()
        self.gone = False

    def say(self, *pieces):
        self._writer.write(b"".join(pieces))

    def begin(self, stream, *messages, end=False):
        """Open a stream, and send messages on it."""
        self.say(wire.headers(stream))
        self.tell(stream, *messages, end=end)

    def tell(self, stream, *messages, end=False):
        data = b"".join(wire.message(each.SerializeToString()) for each in messages)
        if data or end:
            self.say(wire.data(stream, data, end=end))

    async def read_until(self, condition):
        """Read until a condition holds, or the connection is gone: then it must hold."""
        async with asyncio.timeout(DEADLINE):
            while not condition() and not self.gone:
                self._take(await self._read())
        assert condition(), self.frames[-5:]

    async def _read(self):
        try:
            return await self._reader.read(1 << 16)
        except ConnectionError:
            return b""

    def _take(self, data):
        self.gone = not data
        frames, self._rest = wire.parse(self._rest + data)
        self.frames += frames
        for each, flags, stream, payload in frames:
            if each == Kind.DATA:
                deframer = self._deframers.setdefault(stream, PlainDeframer(1 << 30))
                found = deframer.feed(payload)
                replies = self.replies.setdefault(stream, [])
                replies += map(pb.ProcessingResponse.FromString, found)
            if each in {Kind.DATA, Kind.HEADERS} and flags & Flag.END_STREAM:
                self.ended.add(stream)

    def seen(self, kind, stream=None):
        """Payloads of the frames of a kind."""
        return [
            payload
            for found, _, number, payload in self.frames
            if found == kind and stream in {None, number}
        ]

    @property
    def asked(self):
        """What the server's own pings say, which are to be answered."""
        return [
            payload
            for found, flags, _, payload in self.frames
            if found == Kind.PING and not flags & Flag.ACK
        ]

    def codes(self, kind, stream=None):
        """Error codes of resets, or of goodbyes."""
        at = 4 if kind == Kind.GOAWAY else 0
        found = self.seen(kind, stream)
        return [Code(int.from_bytes(payload[at : at + 4], "big")) for payload in found]

    def came(self, stream):
        """How many bytes of DATA have come on a stream."""
        return sum(map(len, self.seen(Kind.DATA, stream)))

    async def heard(self, kind, stream=None):
        """Wait for a frame of a kind; its payload."""
        await self.read_until(lambda: self.seen(kind, stream))
        return self.seen(kind, stream)[-1]

    async def replied(self, stream, count):
        """Wait for replies on a stream."""
        await self.read_until(lambda: len(self.replies.get(stream, ())) >= count)
        return self.replies[stream]

    async def lost(self):
        """Wait until the server has hung up."""
        await self.read_until(lambda: self.gone)

    async def works(self):
        """Whether the connection is still served."""
        mark = len(self.frames)
        self.say(wire.ping(b"are you?"))
        await self.read_until(lambda: (Kind.PING, Flag.ACK, 0, b"are you?") in self.frames[mark:])


def pieces(replies):
    """The pieces of a request's body in replies."""
    return [streamed(reply) for reply in replies if kind(reply) == "request_body"]


@asynccontextmanager
async def greeted(server, **settings):
    """A peer that has greeted the server, and knows its settings."""
    async with connected(server, wire.greeting(**settings)) as peer:
        await peer.heard(Kind.SETTINGS)
        peer.say(wire.acknowledged())
        await peer.works()
        yield peer


@asynccontextmanager
async def connected(server, hello, **how):
    """A peer that has said no more than this."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **how)
    peer = RawPeer(reader, writer)
    peer.say(hello)
    try:
        yield peer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def serves(server):
    """Check that another peer is still served."""
    async with greeted(server) as other:
        other.begin(1, GET)
        (reply,) = await other.replied(1, 1)
        assert kind(reply) == "request_headers"
