"""Attacks by the servers that the picker asks, and by those for whom it asks them.

A render server makes tokens of prompts; an API server says who may read the operators' pages.
"""

import asyncio
import json
import secrets
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain

import aiohttp

from bench.adversary.attack import WORST_MS, Attack, BoundBroken
from bench.adversary.bodies import CHAT, COMPLETIONS, send
from bench.adversary.ground import RENDER_S, Ground, Setting
from bench.adversary.others import READER, Answer, answer, usual

MB = 1 << 20
_REQUESTS = 12
_READS, _AT_ONCE = 300, 50
_RENDER, _REVIEW = Setting(render=True), Setting(review=True)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_IDS = b'{"token_ids":['


def _always(*said: bytes) -> Answer:
    return lambda _, __: answer(*said)


def _endless(opening: bytes, piece: bytes) -> Answer:
    def made() -> Iterator[bytes]:
        yield _HEAD + b"\r\n" + opening
        while True:
            yield piece

    return lambda _, __: made()


def _hanging(_: bytes, __: bytes) -> None:
    """Say nothing at all."""


def _garbled(_: bytes, __: bytes) -> Iterator[bytes]:
    return iter((bytes(range(256)) * 1_000,))


def _headed(_: bytes, __: bytes) -> Iterator[bytes]:
    """A head that does not end."""
    yield b"HTTP/1.1 200 OK\r\n"
    for each in range(1_000_000):
        yield b"x-%d: y\r\n" % each


def _bomb() -> bytes:
    return zlib.compress(_IDS + b"1," * (200 * MB) + b"1]}", 9)


def _media(length: int, count: int) -> bytes:
    places = [{"offset": 0, "length": length}] * count
    features = {"mm_hashes": {"i": ["a"] * count}, "mm_placeholders": {"i": places}}
    return json.dumps({"token_ids": [1] * length, "features": features}).encode()


def _elsewhere(head: bytes, _: bytes) -> Iterator[bytes]:
    return answer(b"", b"307 Temporary Redirect", b"location: " + head.split()[1])


_EITHER: dict[str, Callable[[], Answer]] = {
    "hangs": lambda: _hanging,
    "garbled": lambda: _garbled,
    "head-without-end": lambda: _headed,
    "html": lambda: _always(b"<html>" * 10_000),
    "errs": lambda: _always(b"{}", b"500 Internal Server Error"),
}
RENDERED: dict[str, Callable[[], Answer]] = {
    **_EITHER,
    "refuses": lambda: _always(b'{"error":{}}', b"400 Bad Request"),
    "nested": lambda: _always(b'{"token_ids":[1],"x":' + b"[" * 100_000),
    "endless": lambda: _endless(_IDS, b"1," * 30_000),
    "endless-spaces": lambda: _endless(b"", b" " * 60_000),
    "ids-8mb": lambda: _always(_IDS + b"1," * (4 * MB - 100) + b"1]}"),
    "ids-60mb": lambda: _always(_IDS + b"1," * (30 * MB) + b"1]}"),
    "bomb": lambda: _always(_bomb(), b"200 OK", b"content-encoding: deflate"),
    "media-again": lambda: _always(_media(100_000, 500)),
    "media-empty": lambda: _always(_media(0, 100_000)),
    "elsewhere": lambda: _elsewhere,
    "lies-of-length": lambda: lambda _, __: iter((_HEAD + b"content-length: 9\r\n\r\n" + _IDS,)),
}


_PAUSE_S = 40.0


async def _rendered(ground: Ground, make: Callable[[], Answer], pause: float = 0) -> int:
    """Requests whose tokens such a server makes."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "hello " * 50}]}
    completion = {"model": "m", "prompt": "hello " * 50}
    await _asks(ground)
    before = ground.others.sent
    ground.others.says, ground.others.pause = make(), pause
    async with ground.channel() as channel:
        for _ in range(_REQUESTS // 4):
            pairs = ((CHAT, chat), (COMPLETIONS, completion)) * 2
            await asyncio.gather(*(send(channel, to, json.dumps(it).encode()) for to, it in pairs))
    ground.others.says, ground.others.pause = usual, 0
    return ground.others.sent - before


async def _asks(ground: Ground) -> None:
    """Wait until the picker asks the server again, which paused after failures."""
    ground.others.says = usual
    asked = ground.others.asked
    async with asyncio.timeout(_PAUSE_S):
        while ground.others.asked < asked + 10:
            await asyncio.sleep(0.1)


def _but(says: Answer) -> Answer:
    def chosen(head: bytes, body: bytes) -> Iterator[bytes] | None:
        return usual(head, body) if b'"reader"' in body else says(head, body)

    return chosen


_YES = b'{"status":{"authenticated":true,"user":{"username":"%b"}}}'
REVIEWED: dict[str, Callable[[], Answer]] = {
    "honest": lambda: usual,
    **_EITHER,
    "forbids": lambda: _always(b"{}", b"403 Forbidden"),
    "expired": lambda: _always(b"{}", b"401 Unauthorized"),
    "nested": lambda: _always(b'{"status":' + b'{"x":' * 100_000),
    "not-utf8": lambda: _always(_YES % b"\xff\xfe"),
    "wrong-types": lambda: _always(b'{"status":{"authenticated":"yes","user":[]}}'),
    "user-of-4mb": lambda: _always(_YES % (b"x" * 4 * MB)),
    "endless": lambda: _endless(b'{"status":"', b"x" * 60_000),
    "elsewhere": lambda: _elsewhere,
    "lies": lambda: _always(b'{"status":{"authenticated":true,"allowed":"maybe"}}'),
}


async def _read(ground: Ground, token: str, path: str = "/metrics") -> int:
    limit = aiohttp.ClientTimeout(total=30)
    url = f"http://127.0.0.1:{ground.metrics_port}{path}"
    headers = {"authorization": f"Bearer {token}"}
    with suppress(aiohttp.ClientError, TimeoutError):
        session = aiohttp.ClientSession(timeout=limit, headers=headers)
        async with session as client, client.get(url) as answer:
            await answer.read()
            return answer.status
    return 0


async def _reviewed(ground: Ground, make: Callable[[], Answer], length: int = 20) -> int:
    """Readers with tokens of their own, many at once."""
    before, attack = ground.others.sent, secrets.token_hex(4)  # what was refused is remembered
    ground.others.says = _but(make())

    async def some(share: range) -> list[int]:
        tokens = (f"{attack}-{number}-".ljust(length, "x") for number in share)
        return [await _read(ground, token) for token in tokens]

    shares = (range(start, _READS, _AT_ONCE) for start in range(_AT_ONCE))
    statuses = list(chain.from_iterable(await asyncio.gather(*map(some, shares))))
    own = await _read(ground, READER)
    ground.others.says = usual
    if 200 in statuses or own != 200:
        raise BoundBroken(f"{statuses.count(200)} without rights were let in, the reader: {own}")
    return ground.others.sent - before + _READS * length


def attacks() -> Iterator[Attack]:
    """Render servers, then those who review. A render waits for the server's timeout, at most."""
    worst = WORST_MS + 1e3 * RENDER_S
    rendered = partial(Attack, group="more", setting=_RENDER, seconds=80, worst_ms=worst)
    for name, render in RENDERED.items():
        yield rendered(name=f"render-{name}", strike=partial(_rendered, make=render))
    drips = partial(_rendered, make=lambda: _endless(_IDS, b"1,"), pause=0.05)
    yield rendered(name="render-drips", strike=drips)
    reviewed = partial(Attack, group="more", setting=_REVIEW, seconds=90)
    for name, review in REVIEWED.items():
        yield reviewed(name=f"review-{name}", strike=partial(_reviewed, make=review))
    long = partial(_reviewed, make=lambda: usual, length=30_000)
    yield reviewed(name="review-long-tokens", strike=long)
