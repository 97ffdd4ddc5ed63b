"""Attacks by request bodies: what costs most to read, in every way that a gateway sends it."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import grpc.aio
import msgspec

from bench.adversary.attack import Attack
from bench.adversary.ground import Ground, read_replies
from tests.adapters.ext_proc_peer import BUFFERED, BUFFERED_PARTIAL, DUPLEX, Peer, body, head

MB, KB = 1 << 20, 1 << 10
_PIECE = 64 << 10
"""What Envoy sends of a body at once, at most."""
_AT_ONCE = 2
_ANSWER_S = 30.0
_LAST_REPLY_S = 0.5
"""How long after its last byte a request stays, as the proxy that waits for the pick."""
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"


class Shape(msgspec.Struct, frozen=True):
    """`opening`, then `item` as often as there is room, then `closing`."""

    path: str
    opening: bytes
    item: bytes
    closing: bytes

    def of(self, size: int) -> bytes:
        """A body of about `size` bytes."""
        room = size - len(self.opening) - len(self.closing)
        return self.opening + self.item * max(0, room // len(self.item)) + self.closing

    def cut(self) -> "Shape":
        """The same without its end, as it is when a client or a proxy gives up."""
        return Shape(self.path, self.opening, self.item, b"")


_MESSAGES = b'{"model":"m","messages":['
_CONTENT = _MESSAGES + b'{"role":"user","content":['
_HELD_MB = 512 * 1.2
"""What unfinished requests may hold (`bench.adversary.ground`), and what carries it."""
_PROMPT = b'{"model":"m","prompt":'
SHAPES = {
    "prompts": Shape(COMPLETIONS, _PROMPT + b"[", b'"",', b'""]}'),
    "long-prompts": Shape(COMPLETIONS, _PROMPT + b"[", b'"hello",', b'""]}'),
    "token-prompts": Shape(COMPLETIONS, _PROMPT + b"[", b"[1],", b"[1]]}"),
    "token-ids": Shape(COMPLETIONS, _PROMPT + b"[", b"1,", b"1]}"),
    "long-token-ids": Shape(COMPLETIONS, _PROMPT + b"[", b"99999,", b"1]}"),
    "embeddings": Shape(EMBEDDINGS, b'{"model":"m","input":[', b'"",', b'""]}'),
    "messages": Shape(CHAT, _MESSAGES, b"{},", b"{}]}"),
    "roles": Shape(CHAT, _MESSAGES, b'{"role":"user","content":""},', b"{}]}"),
    "escaped-role": Shape(CHAT, _MESSAGES + b'{"role":"\\u0061"},', b"{},", b"{}]}"),
    "escaped-key": Shape(CHAT, _MESSAGES + b'{"r\\u006fle":"a"},', b"{},", b"{}]}"),
    "twice-messages": Shape(CHAT, b'{"model":"m","messages":[],"messages":[', b"{},", b"{}]}"),
    "twice-role": Shape(CHAT, _MESSAGES + b'{"role":"a","role":"b"},', b"{},", b"{}]}"),
    "twice-model": Shape(CHAT, b'{"model":"m"', b',"model":"m"', b',"messages":[]}'),
    "keys": Shape(CHAT, b'{"model":"m"', b',"a":1', b',"messages":[]}'),
    "text-parts": Shape(CHAT, _CONTENT, b'{"type":"text","text":""},', b"{}]}]}"),
    "empty-parts": Shape(CHAT, _CONTENT, b"{},", b"{}]}]}"),
    "media-parts": Shape(
        CHAT, _CONTENT, b'{"type":"image_url","image_url":{"url":"x"}},', b"{}]}]}"
    ),
    "tools": Shape(CHAT, _MESSAGES + b'{"role":"user","content":"x"}],"tools":[', b"{},", b"{}]}"),
    "tool-calls": Shape(
        CHAT, _MESSAGES + b'{"role":"assistant","tool_calls":[', b'{"id":""},', b"{}]}]}"
    ),
    "items": Shape(RESPONSES, b'{"model":"m","input":[', b"{},", b"{}]}"),
    "nested": Shape(COMPLETIONS, _PROMPT + b'"x","x":[', b"[[]],", b"[]]}"),
    "deep": Shape(COMPLETIONS, _PROMPT, b"[", b""),
    "deep-beside": Shape(CHAT, _MESSAGES + b'{}],"x":', b'{"a":[', b""),
    "malformed-end": Shape(COMPLETIONS, _PROMPT + b"[", b'"",', b'""]]]'),
    "escapes": Shape(COMPLETIONS, _PROMPT + b'"', b"\\u0061", b'"}'),
    "quotes": Shape(CHAT, _MESSAGES + b'{"role":"user","content":"', b'\\"', b'"}]}'),
    "spaces": Shape(CHAT, b'{"model":"m",', b" ", b'"messages":[]}'),
    "digits": Shape(COMPLETIONS, b'{"model":"m","x":', b"9", b',"prompt":"x"}'),
    "not-utf8": Shape(COMPLETIONS, _PROMPT + b'"', b"\xff\xfe", b'"}'),
    "long-model": Shape(CHAT, b'{"model":"', b"m", b'","messages":[]}'),
}
_CUT = {
    "quotes": SHAPES["quotes"],
    "backslashes": Shape(CHAT, SHAPES["quotes"].opening, b"\\\\", b""),
    **{name: SHAPES[name] for name in ("escapes", "empty-parts", "tool-calls", "nested", "spaces")},
}
_CUT_KB = (70, 200, 1_000, 4_900)
"""Small bodies, those in odd forms, and long ones are read in different ways."""
_LARGE = ("prompts", "token-prompts", "messages", "escaped-role", "empty-parts", "keys", "deep")


async def send(
    channel: grpc.aio.Channel, path: str, data: bytes, *, mode: int = DUPLEX, piece: int = _PIECE
) -> None:
    """Send one request's body, read all that is answered, and reset."""
    peer = Peer(channel, _ANSWER_S)
    step = piece if mode == DUPLEX else len(data)

    async def write() -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await peer.send(head((mode, DUPLEX), path=path))
            for at in range(0, len(data), step):
                end = at + step >= len(data)
                await peer.send(body(data[at : at + step], end=end))

    # Everything up to the whole body's way back, which the picker waits for.
    taking = asyncio.create_task(read_replies(peer))
    writing = asyncio.create_task(write())
    await asyncio.wait({taking, writing}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait({taking}, timeout=_LAST_REPLY_S)
    writing.cancel()
    peer.call.cancel()
    await asyncio.gather(taking, writing, return_exceptions=True)


async def _strike(ground: Ground, shape: Shape, size: int, mode: int) -> int:
    return await strike(ground, shape.path, shape.of(size), mode)


async def strike(ground: Ground, path: str, data: bytes, mode: int) -> int:
    """Send a body several times at once; the bytes of all."""
    async with ground.channel() as channel:
        await asyncio.gather(*(send(channel, path, data, mode=mode) for _ in range(_AT_ONCE)))
    return _AT_ONCE * len(data)


async def _tiny_pieces(ground: Ground, count: int) -> int:
    """A body of one-byte pieces, with a hundred thousand messages around it."""
    data = SHAPES["roles"].of(count)
    async with ground.channel() as channel:
        await asyncio.gather(*(send(channel, CHAT, data, piece=1) for _ in range(_AT_ONCE)))
    return _AT_ONCE * len(data)


async def _empty_pieces(ground: Ground) -> int:
    """Pieces of no bytes at all."""
    async with ground.channel() as channel:
        peer = Peer(channel, _ANSWER_S)
        await peer.send(head())
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for _ in range(20_000):
                await peer.send(body(b"", end=False))
        peer.call.cancel()
    return 20_000 * 8


class _Upload:
    """A body that does not end."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._peer = Peer(channel, _ANSWER_S)
        self.sent = 0

    async def write(self, size: int) -> None:
        """Send so much, and stay."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._peer.send(head(), body(_PROMPT + b'"', end=False))
            for _ in range(size // _PIECE):
                await self._peer.send(body(b"x" * _PIECE, end=False))
                self.sent += _PIECE
        await asyncio.sleep(3600)

    async def take(self) -> None:
        """Read what is sent back."""
        await read_replies(self._peer)


async def _uploads(ground: Ground, *, count: int, size: int, read: bool) -> int:
    """Bodies that do not end, all at once; `read`: whether what is sent back is taken."""
    async with ground.channel() as channel:
        uploads = [_Upload(channel) for _ in range(count)]
        tasks = [asyncio.create_task(each.write(size)) for each in uploads]
        if read:
            tasks += [asyncio.create_task(each.take()) for each in uploads]
        sent = -1
        while sent != (sent := sum(each.sent for each in uploads)):
            await asyncio.sleep(1.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return sent


async def _drips(ground: Ground) -> int:
    """Requests that send a byte now and then."""
    async with ground.channel() as channel:
        peers = [Peer(channel, _ANSWER_S) for _ in range(200)]
        for peer in peers:
            await peer.send(head(), body(_PROMPT + b'"', end=False))
        for _ in range(30):
            for peer in peers:
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await peer.send(body(b"x", end=False))
            await asyncio.sleep(0.05)
        for peer in peers:
            peer.call.cancel()
    return 200 * 200


def attacks() -> Iterator[Attack]:
    """Every shape whole and in pieces; those that are worst at the limit of a body, too."""
    for name, shape in SHAPES.items():
        for how, mode in (("pieces", DUPLEX), ("whole", BUFFERED)):
            strike = partial(_strike, shape=shape, size=8 * MB, mode=mode)
            yield Attack(name=f"body-{name}-8mb-{how}", group="bodies", strike=strike)
    for name in _LARGE:
        for how, mode in (("pieces", DUPLEX), ("whole", BUFFERED)):
            strike = partial(_strike, shape=SHAPES[name], size=63 * MB, mode=mode)
            yield Attack(name=f"body-{name}-63mb-{how}", group="bodies", strike=strike, seconds=30)
    yield from _cut()
    yield Attack(
        name="body-one-byte-pieces", group="bodies", strike=partial(_tiny_pieces, count=20_000)
    )
    yield Attack(name="body-empty-pieces", group="bodies", strike=_empty_pieces)
    for name, read in (("read", True), ("unread", False)):
        strike = partial(_uploads, count=60, size=60 * MB, read=read)
        yield Attack(
            name=f"uploads-{name}", group="uploads", strike=strike, seconds=60, most_mb=_HELD_MB
        )
    yield Attack(name="drips", group="uploads", strike=_drips)


def _cut() -> Iterator[Attack]:
    """Bodies without an end, in all modes that show them."""
    for name, shape in _CUT.items():
        for size in _CUT_KB:
            for how, mode in (("pieces", DUPLEX), ("whole", BUFFERED), ("part", BUFFERED_PARTIAL)):
                made = partial(_strike, shape=shape.cut(), size=size * KB, mode=mode)
                yield Attack(name=f"body-cut-{name}-{size}kb-{how}", group="bodies", strike=made)
