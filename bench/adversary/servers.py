"""Attacks by model servers: their metrics pages, and the responses that pass by."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType

import grpc.aio

from bench.adversary.attack import Attack
from bench.adversary.ground import Ground, read_replies
from tests.adapters.ext_proc_peer import Peer, body, head, response_body, response_head

MB = 1 << 20
_ATTACK_S = 4.0
_PIECE = 64 << 10
_ANSWER_S = 20.0
_END = b"\n"

Page = Callable[[], Iterator[bytes]]
"""The bytes of a response, with its head; a new one for each request."""


def _whole(text: bytes, *more: bytes) -> Page:
    head = (b"HTTP/1.1 200 OK", b"content-type: text/plain", b"content-length: %d" % len(text))
    return _raw(b"\r\n".join((*head, *more, b"", text)))


def _raw(*pieces: bytes) -> Page:
    return lambda: iter(pieces)


def _endless(piece: bytes) -> Page:
    def made() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
        while True:
            yield piece

    return made


def _engines(count: int) -> bytes:
    line = b'vllm:num_requests_running{engine="%d"} 1\nvllm:num_requests_waiting{engine="%d"} 1\n'
    return b"".join(line % (each, each) for each in range(count))


def _labels(count: int) -> bytes:
    pairs = b",".join(b'l%d="x"' % each for each in range(count))
    return b"vllm:num_requests_running{" + pairs + b"} 1\n"


def _distinct(count: int) -> bytes:
    return b"".join(b'vllm:lora_requests_info{name="%d"} 1\n' % each for each in range(count))


_GAUGE = b"vllm:num_requests_running"
_LINE_MB = 100_000, 3_900_000
PAGES: dict[str, Page] = {
    **{
        f"{name}-{size // 1_000}kb": _whole(_GAUGE + b"{" + part * (size // len(part)) + b"} 1\n")
        for size in _LINE_MB
        for name, part in (
            ("letters", b"a"),
            ("quotes", b'a="'),
            ("pairs", b'a="b",'),
            ("backslashes", b"\\"),
            ("escaped", b'a="\\"'),
            ("spaces", b" "),
            ("braces", b"{"),
        )
    },
    "allowed-lines": _whole((_GAUGE + b"{" + b"a" * 8_000 + b"} 1\n") * 480),
    "many-engines": _whole(_engines(40_000)),
    "many-labels": _whole(_labels(40_000)),
    "many-adapters": _whole(_distinct(100_000)),
    "many-lines": _whole(b"a 1\n" * 1_000_000),
    "empty-lines": _whole(b"\n" * 4_000_000),
    "comments": _whole(b"# HELP a b\n" * 350_000),
    "one-line": _whole(b"a" * 8 * MB),
    "long-name": _whole(b"a" * 3_900_000 + b" 1\n"),
    "long-number": _whole(_GAUGE + b" " + b"9" * 3_900_000 + b"\n"),
    "wild-numbers": _whole(
        b"".join(
            _GAUGE + b" %b\n" % each
            for each in (
                *(b"NaN", b"+Inf", b"-Inf", b"1e999999", b"-1", b"1e-999999", b"0x10", b"1_0"),
                b"9" * 400,
            )
        )
    ),
    "wild-cache": _whole(
        b'vllm:cache_config_info{block_size="%b",num_gpu_blocks="%b"} 1\n' % (b"9" * 30, b"9" * 30)
    ),
    "large-cache": _whole(
        b'vllm:cache_config_info{block_size="1",num_gpu_blocks="2000000000"} 1\n'
    ),
    "small-cache": _whole(b'vllm:cache_config_info{block_size="0",num_gpu_blocks="0"} 1\n'),
    "no-text": _whole(bytes(range(256)) * 4_000),
    "endless": _endless(b"a 1\n" * 16_000),
    "endless-line": _endless(b"a" * 64_000),
    "head-without-end": lambda: iter(
        (b"HTTP/1.1 200 OK\r\n", *(b"x-%d: y\r\n" % each for each in range(100_000)))
    ),
    "no-http": _raw(bytes(range(256)) * 1_000),
    "status-without-end": _raw(b"HTTP/1.1 " + b"2" * MB),
    "elsewhere": _raw(b"HTTP/1.1 302 Found\r\nlocation: /metrics\r\ncontent-length: 0\r\n\r\n"),
    "lies-of-length": _raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\na 1\n"),
    "large-chunks": _raw(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"f" * 10_000 + b"\r\n"
    ),
    "nothing": _raw(),
}


@contextlib.asynccontextmanager
async def hostile(page: Page) -> AsyncIterator[int]:
    """A server that answers every request with that page; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await reader.readuntil(b"\r\n\r\n"):
                for piece in page():
                    writer.write(piece)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _paged(ground: Ground, page: Page) -> int:
    """Four endpoints of the pool have that page, for several polls."""
    async with contextlib.AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(hostile(page)) for _ in range(4)]
        ground.know(*ports)
        await asyncio.sleep(_ATTACK_S)
        ground.know()
        await asyncio.sleep(0.5)
    return 8 * MB


_JSON, _STREAM = "application/json", "text/event-stream"


def _unended(opening: bytes, item: bytes, size: int) -> Iterator[bytes]:
    """A text without an end, of about `size` bytes, in pieces."""
    yield opening
    for _ in range(size // _PIECE):
        yield item * (_PIECE // len(item))


_USAGE = b'"usage":{"prompt_tokens":%b,"completion_tokens":%b}'
RESPONSES: dict[str, tuple[str, Callable[[], Iterator[bytes]]]] = {
    "line-without-end": (_STREAM, lambda: (b"data: " + b"x" * _PIECE for _ in range(1_600))),
    "events-without-end": (
        _STREAM,
        lambda: (b'data: {"choices":[{"text":"a"}]}\n\n' * 2_000 for _ in range(400)),
    ),
    "empty-events": (_STREAM, lambda: (b"data:\n\n" * 9_000 for _ in range(400))),
    "newlines": (_STREAM, lambda: (b"\n" * _PIECE for _ in range(400))),
    "usages": (
        _STREAM,
        lambda: (b"data: {" + _USAGE % (b"1", b"1") + b"}\n\n" * 1_000 for _ in range(400)),
    ),
    "usage-again": (
        _JSON,
        lambda: (b"{" + (_USAGE % (b"1", b"1") + b",") * 1_000 for _ in range(400)),
    ),
    "usage-words": (_JSON, lambda: (b'"usage"' * 9_000 for _ in range(400))),
    "usage-unended": (_JSON, lambda: (b'{"usage":{' * 6_000 for _ in range(400))),
    "deep": (_JSON, lambda: (b'{"a":' * 13_000 for _ in range(400))),
    "quotes": (_JSON, lambda: (b'\\"' * 32_000 for _ in range(400))),
    "large-usage": (
        _JSON,
        lambda: iter((b"{" + _USAGE % (b"2147483647", b"2147483647") + b"}",)),
    ),
    "wild-usage": (_JSON, lambda: iter((b"{" + _USAGE % (b"9" * 5_000, b"-1") + b"}",))),
    "bytes": (_STREAM, lambda: (b"x" for _ in range(20_000))),
}


REWRITTEN: dict[str, tuple[str, Callable[[], Iterator[bytes]]]] = {
    name: (kind, partial(_unended, opening, item, size))
    for size in (_PIECE, 7 * _PIECE, 8 * MB)
    for kind, opening in ((_JSON, b'{"model":"x","a":"'), (_STREAM, b'data: {"model":"x","a":"'))
    for name, item in (
        (f"quotes-{kind[-4:]}-{size >> 10}kb", b'\\"'),
        (f"backslashes-{kind[-4:]}-{size >> 10}kb", b"\\\\"),
        (f"keys-{kind[-4:]}-{size >> 10}kb", b'","model":"x'),
    )
}
"""Of requests whose model is another than the client's: the name is put back in their answers."""
_REWRITE = {"x-llm-d-model-name-rewrite": "other"}


async def _responded(
    ground: Ground,
    kind: str,
    pieces: Callable[[], Iterator[bytes]],
    headers: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """A request like any other, whose response is that."""
    sent = 0

    async def one(channel: grpc.aio.Channel) -> None:
        nonlocal sent
        peer = Peer(channel, _ANSWER_S)
        taking = asyncio.create_task(read_replies(peer))
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            asked = head(**headers)
            await peer.send(asked, body(), response_head(**{"content-type": kind}))
            for piece in pieces():
                await peer.send(response_body(piece, end=False))
                sent += len(piece)
            await peer.send(response_body(_END))
            await peer.call.done_writing()
            await taking
        taking.cancel()
        peer.call.cancel()

    async with ground.channel() as channel:
        await asyncio.gather(*(one(channel) for _ in range(4)))
    return sent


def attacks() -> Iterator[Attack]:
    """Pages, then responses."""
    for name, page in PAGES.items():
        yield Attack(
            name=f"page-{name}", group="pages", strike=partial(_paged, page=page), most_mb=64
        )
    for name, (kind, pieces) in RESPONSES.items():
        strike = partial(_responded, kind=kind, pieces=pieces)
        yield Attack(
            name=f"response-{name}", group="responses", strike=strike, seconds=30, most_mb=64
        )
    for name, (kind, pieces) in REWRITTEN.items():
        strike = partial(_responded, kind=kind, pieces=pieces, headers=_REWRITE)
        yield Attack(
            name=f"rewritten-{name}", group="responses", strike=strike, seconds=30, most_mb=64
        )
