"""Attacks by HTTP/2 frames and by connections, below any request."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import msgspec

from bench.adversary.attack import Attack
from bench.adversary.ground import Ground
from tests.adapters.ext_proc_peer import body, head, response_body
from tests.adapters.raw_peer import GET
from tests.native import wire
from tests.native.wire import Kind

_FLOOD_S = 4.0
_CONNECT_S = 5.0
_BATCH = 500
_CHUNK = 1 << 16
_BACKLOG_RETRY_S = 0.01
_FLOODING_CONNECTIONS = 2
GREETING = wire.greeting() + wire.acknowledged()


class Flood(msgspec.Struct, frozen=True, kw_only=True):
    """`batch` makes the frames that go out from a stream's number on, and the next number.

    `read`: whether what the picker says is taken.
    """

    hello: bytes = GREETING
    batch: Callable[[int], tuple[bytes, int]]
    read: bool = True


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(port: int) -> Pair:
    """A connection, however long the queue of those that wait to be accepted is."""
    async with asyncio.timeout(_CONNECT_S):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except (ConnectionError, TimeoutError):
                await asyncio.sleep(_BACKLOG_RETRY_S)


async def closed(*pairs: Pair) -> None:
    """Hang up on them all, with a reset: nothing stays in TIME_WAIT."""
    for _, writer in pairs:
        with contextlib.suppress(OSError):
            link: socket.socket = writer.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    await asyncio.sleep(0.05)


async def _discard(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(_CHUNK):
            pass


async def _flood_one(ground: Ground, flood: Flood, until: float) -> int:
    loop, sent = asyncio.get_running_loop(), 0
    while loop.time() < until:
        pair = await opened(ground.port)
        reader, writer = pair
        reading = asyncio.create_task(_discard(reader)) if flood.read else None
        number = 1
        try:
            writer.write(flood.hello)
            while loop.time() < until and not (reading and reading.done()) and number < 1 << 30:
                frames, number = flood.batch(number)
                writer.write(frames)
                sent += len(frames)
                async with asyncio.timeout_at(until):
                    await writer.drain()
        except (ConnectionError, TimeoutError):
            pass
        finally:
            if reading is not None:
                reading.cancel()
            await closed(pair)
    return sent


async def _flooded(ground: Ground, flood: Flood) -> int:
    until = asyncio.get_running_loop().time() + _FLOOD_S
    ones = (_flood_one(ground, flood, until) for _ in range(_FLOODING_CONNECTIONS))
    return sum(await asyncio.gather(*ones))


def _streams(of: Callable[[int], bytes], count: int = _BATCH) -> Callable[[int], tuple[bytes, int]]:
    """A batch of new streams, each with what `of` says of its number."""

    def batch(number: int) -> tuple[bytes, int]:
        last = number + 2 * count
        return b"".join(of(each) for each in range(number, last, 2)), last

    return batch


def _same(frames: bytes) -> Callable[[int], tuple[bytes, int]]:
    return lambda number: (frames, number)


def _after(first: bytes, rest: bytes) -> Callable[[int], tuple[bytes, int]]:
    return lambda number: (first if number == 1 else rest, 3)


_HEAD = wire.message(head().SerializeToString())
_GET = wire.message(GET.SerializeToString())
_ODD = wire.message(response_body().SerializeToString())
_CHAT = _HEAD + wire.message(body().SerializeToString())
_MANY = wire.request(more=[(b"x-%d" % each, b"y" * 200) for each in range(100)])
_HUGE = wire.header(b"x", b"y" * 16_000)
_FLOODS: dict[str, Flood] = {
    "rapid-reset": Flood(
        batch=_streams(lambda n: wire.headers(n) + wire.data(n, _CHAT) + wire.reset(n))
    ),
    "rapid-reset-heads": Flood(batch=_streams(lambda n: wire.headers(n) + wire.reset(n))),
    # CVE-2025-8671: the server is made to reset, by frames that are errors of a stream.
    "made-reset-window": Flood(
        batch=_streams(lambda n: wire.headers(n) + wire.window_update(n, 0))
    ),
    "made-reset-overflow": Flood(
        batch=_streams(lambda n: wire.headers(n) + wire.window_update(n, (1 << 31) - 1))
    ),
    "made-reset-closed": Flood(
        batch=_streams(lambda n: wire.headers(n, end=True) + wire.data(n, b"x" * 10))
    ),
    "made-reset-priority": Flood(
        batch=_streams(
            lambda n: wire.headers(n) + wire.frame(Kind.PRIORITY, n, struct.pack(">IB", n, 1))
        ),
    ),
    "made-reset-message": Flood(
        batch=_streams(lambda n: wire.headers(n) + wire.data(n, b"\x01\xff\xff\xff\xff"))
    ),
    "made-refusal": Flood(batch=_streams(lambda n: wire.headers(n) + wire.data(n, _ODD))),
    "wrong-type": Flood(batch=_streams(lambda n: wire.headers(n, wire.request(content_type=b"x")))),
    "wrong-path": Flood(batch=_streams(lambda n: wire.headers(n, wire.request(path=b"/")))),
    "no-headers": Flood(batch=_streams(lambda n: wire.headers(n, b""))),
    "heads": Flood(batch=_streams(wire.headers)),
    "gets": Flood(batch=_streams(lambda n: wire.headers(n) + wire.data(n, _GET))),
    "gets-unread": Flood(
        batch=_streams(lambda n: wire.headers(n) + wire.data(n, _GET)), read=False
    ),
    "no-window": Flood(
        hello=wire.greeting(window=0),
        batch=_streams(lambda n: wire.headers(n) + wire.data(n, _GET)),
    ),
    "large-heads": Flood(batch=_streams(lambda n: wire.headers(n, _MANY), 50)),
    "pings": Flood(batch=_same(wire.ping() * 1_000)),
    "pings-unread": Flood(batch=_same(wire.ping() * 1_000), read=False),
    "settings": Flood(batch=_same(wire.settings(window=1 << 16) * 500)),
    "settings-unread": Flood(batch=_same(wire.settings(window=1 << 16) * 500), read=False),
    "windows": Flood(
        batch=_after(wire.headers(1), wire.settings(window=0) + wire.settings(window=9))
    ),
    "empty-data": Flood(batch=_after(wire.headers(1), wire.frame(Kind.DATA, 1) * 1_000)),
    "grants": Flood(batch=_after(wire.headers(1), wire.window_update(1, 1) * 1_000)),
    "priorities": Flood(
        batch=_same(wire.frame(Kind.PRIORITY, 3, struct.pack(">IB", 0, 1)) * 1_000)
    ),
    "continuations": Flood(
        batch=_after(
            wire.frame(Kind.HEADERS, 1, wire.request()),
            wire.frame(Kind.CONTINUATION, 1, _HUGE) * 20,
        )
    ),
    "empty-continuations": Flood(
        batch=_after(
            wire.frame(Kind.HEADERS, 1, wire.request()), wire.frame(Kind.CONTINUATION, 1) * 1_000
        )
    ),
    "unknown-frames": Flood(batch=_same(wire.frame(99, 0, b"x" * 100) * 100)),
    "goodbyes": Flood(batch=_same(wire.goaway() * 500)),
    "http1": Flood(hello=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", batch=_same(b"\r\n")),
    "noise": Flood(batch=_same(bytes(range(256)) * 100)),
}


async def _idle(ground: Ground, hello: bytes, count: int, port: str, *, half: bool = False) -> int:
    """Connections that say so much and then nothing."""
    pairs: list[Pair] = []
    try:
        for at in range(0, count, 50):
            batch = range(min(50, count - at))
            pairs += await asyncio.gather(*(opened(getattr(ground, port)) for _ in batch))
        for _, writer in pairs:
            writer.write(hello)
            if half:
                writer.write_eof()
        await asyncio.sleep(2)
    finally:
        await closed(*pairs)
    return count * (len(hello) + 200)


async def _dripped(ground: Ground) -> int:
    """The bytes of good requests, a few at a time, on many connections."""
    said = GREETING + wire.headers(1) + wire.data(1, _CHAT)
    pairs = await asyncio.gather(*(opened(ground.port) for _ in range(200)))
    for at in range(0, len(said), 8):
        for _, writer in pairs:
            writer.write(said[at : at + 8])
        await asyncio.sleep(0.02)
    await closed(*pairs)
    return 200 * len(said)


async def _cut(ground: Ground) -> int:
    """Connections that are reset in the midst of a frame, again and again."""
    said = GREETING + wire.headers(1) + wire.data(1, _CHAT)
    sent = 0
    for at in range(0, len(said), 5):
        pairs = await asyncio.gather(*(opened(ground.port) for _ in range(8)))
        for _, writer in pairs:
            writer.write(said[:at])
            sent += at
        await closed(*pairs)
    return sent


async def _unended(ground: Ground) -> int:
    """Streams that begin and go no further, many on each of many connections."""
    pairs = await asyncio.gather(*(opened(ground.port) for _ in range(20)))
    said = b"".join(wire.headers(n) + wire.data(n, _HEAD) for n in range(1, 2 * 500, 2))
    for _, writer in pairs:
        writer.write(GREETING + said)
    await asyncio.sleep(3)
    await closed(*pairs)
    return 20 * len(said)


async def _lies(ground: Ground) -> int:
    """Messages said to be as long as may be, on many streams, of which a few bytes come."""
    start = struct.pack(">BI", 0, 64 << 20) + b"x" * 100
    said = b"".join(wire.headers(n) + wire.data(n, start) for n in range(1, 2 * 1_000, 2))
    pairs = await asyncio.gather(*(opened(ground.port) for _ in range(4)))
    for _, writer in pairs:
        writer.write(GREETING + said)
    await asyncio.sleep(2)
    await closed(*pairs)
    return 4 * len(said)


_CONNECTIONS: dict[str, Callable[[Ground], Awaitable[int]]] = {
    "idle-silent": partial(_idle, hello=b"", count=2_000, port="port"),
    "idle-preface": partial(_idle, hello=wire.PREFACE[:10], count=500, port="port"),
    "idle-greeted": partial(_idle, hello=GREETING, count=2_000, port="port"),
    "half-closed": partial(
        _idle, hello=GREETING + wire.headers(1), count=500, port="port", half=True
    ),
    "half-closed-chat": partial(
        _idle,
        hello=GREETING + wire.headers(1) + wire.data(1, _CHAT, end=True),
        count=500,
        port="port",
        half=True,
    ),
    "idle-operators": partial(_idle, hello=b"GET /metr", count=1_000, port="metrics_port"),
    "long-operators": partial(
        _idle, hello=b"GET /" + b"x" * 100_000, count=50, port="metrics_port"
    ),
    "pipelined-operators": partial(
        _idle, hello=b"GET /metrics HTTP/1.1\r\n\r\n" * 50, count=10, port="metrics_port"
    ),
    "dripped": _dripped,
    "cut": _cut,
    "unended": _unended,
    "lies": _lies,
}


def attacks() -> Iterator[Attack]:
    """Floods of frames, then connections."""
    for name, flood in _FLOODS.items():
        strike = partial(_flooded, flood=flood)
        # What is sent is read and dropped: it says nothing of what may be kept.
        yield Attack(name=f"flood-{name}", group="frames", strike=strike, most_mb=128)
    for name, connections in _CONNECTIONS.items():
        yield Attack(
            name=f"connections-{name}", group="connections", strike=connections, most_mb=128
        )
