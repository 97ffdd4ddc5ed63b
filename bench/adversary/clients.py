"""Attacks by good requests with bad words, and by those who read the metrics page."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import aiohttp
import grpc.aio
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from bench.adversary.attack import Attack, BoundBroken
from bench.adversary.ground import Ground
from tests.adapters.ext_proc_peer import (
    DUPLEX,
    Peer,
    body,
    head,
    header_map,
    response_body,
    response_head,
)

_ANSWER_S = 20.0
_REQUESTS = 1_500
_AT_ONCE = 50
_PAGE_BYTES = 5 << 20
_SCRAPES = 8
_FAIRNESS = "x-gateway-inference-fairness-id"
_CHAT = b'{"model":"m","messages":[]}'


def _head(**more: str) -> pb.ProcessingRequest:
    made = head((DUPLEX, DUPLEX))
    headers = {":method": "POST", ":path": "/v1/chat/completions", **more}
    made.request_headers.headers.CopyFrom(header_map(headers))
    return made


async def _asked(channel: grpc.aio.Channel, first: pb.ProcessingRequest, data: bytes) -> None:
    peer = Peer(channel, _ANSWER_S)
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, AssertionError):
        await peer.send(first, body(data))
        await peer.receive()
        await peer.send(response_head(), response_body())
        await peer.call.done_writing()
        await peer.rest()
    peer.call.cancel()


async def _labelled(ground: Ground, length: int) -> int:
    """Requests that are each for a model and a tenant of their own, and readers of the page."""
    sent = 0

    async def some(channel: grpc.aio.Channel, share: range) -> None:
        nonlocal sent
        for number in share:
            word = f"{number}-".ljust(length, "x")
            data = json.dumps({"model": word, "messages": []}).encode()
            await _asked(channel, _head(**{_FAIRNESS: word[: 4 << 10]}), data)
            sent += len(data)

    async with ground.channel() as channel:
        shares = (range(start, _REQUESTS, _AT_ONCE) for start in range(_AT_ONCE))
        await asyncio.gather(*(some(channel, share) for share in shares))
    sizes = await asyncio.gather(*(_scraped(ground) for _ in range(_SCRAPES)))
    if max(sizes) > _PAGE_BYTES:
        raise BoundBroken(f"the metrics page has {max(sizes):,} bytes")
    return sent


async def _scraped(ground: Ground) -> int:
    """Read the page; its size, whatever that is."""
    url = f"http://127.0.0.1:{ground.metrics_port}/metrics"
    limit = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=limit) as client, client.get(url) as answer:
        return len(await answer.read())


async def _scrapes(ground: Ground) -> int:
    """Many readers of the page, without a pause."""
    for _ in range(10):
        await asyncio.gather(*(_scraped(ground) for _ in range(20)))
    return 0


async def _unread(ground: Ground) -> int:
    """Readers that ask, and take nothing of what they are told."""
    pairs = [await asyncio.open_connection("127.0.0.1", ground.metrics_port) for _ in range(200)]
    for _, writer in pairs:
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 20)
    await asyncio.sleep(3)
    for _, writer in pairs:
        writer.transport.abort()
    return 0


async def _headers(ground: Ground) -> int:
    """Requests with as many headers as a proxy lets through."""
    more = {f"x-{each}": "y" * 100 for each in range(500)}
    async with ground.channel() as channel:
        await asyncio.gather(*(_asked(channel, _head(**more), _CHAT) for _ in range(200)))
    return 200 * 500 * 105


async def _long_path(ground: Ground) -> int:
    first = head(path="/v1/chat/completions" + "/x" * 30_000)
    async with ground.channel() as channel:
        await asyncio.gather(*(_asked(channel, first, _CHAT) for _ in range(200)))
    return 200 * 60_000


def attacks() -> Iterator[Attack]:
    """Words that become labels, then pages."""
    for length in (20, 64 << 10):
        strike = partial(_labelled, length=length)
        yield Attack(
            name=f"labels-{length}", group="labels", strike=strike, seconds=60, most_mb=128
        )
    yield Attack(name="scrapes", group="labels", strike=_scrapes, seconds=60)
    yield Attack(name="scrapes-unread", group="labels", strike=_unread)
    yield Attack(name="many-headers", group="more", strike=_headers)
    yield Attack(name="long-path", group="more", strike=_long_path)
