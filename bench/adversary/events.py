"""Attacks by publishers of KV events, and by prompts that are hard to tokenize."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial

from bench.adversary.attack import Attack
from bench.adversary.bodies import CHAT, COMPLETIONS, send
from bench.adversary.ground import EVENTS, Ground
from tests.adapters.zmq_publisher import ZmqPublisher
from tests.kvpublisher import frames, payload, removed, stored

MB = 1 << 20
_ATTACK_S = 3.0
_NUMBERS = 1 << 62

Message = list[bytes]


def _blocks(count: int, start: int = 0) -> list[bytes]:
    return [(start + each).to_bytes(8, "big") for each in range(count)]


def _numbered(bodies: Iterator[bytes]) -> Iterator[Message]:
    return (frames(number, body) for number, body in enumerate(bodies))


def _large(count: int) -> Iterator[bytes]:
    """Batches of one event with so many blocks."""
    for number in range(1_000_000):
        yield payload(stored(_blocks(count, number * count)))


def _many(count: int) -> Iterator[bytes]:
    """Batches of so many events of one block."""
    for number in range(1_000_000):
        yield payload(*(stored([each]) for each in _blocks(count, number * count)))


def _removing(count: int) -> Iterator[bytes]:
    one = payload(removed(*_blocks(count)))
    return iter([one] * 1_000)


def _of(*bodies: bytes) -> Iterator[bytes]:
    while True:
        yield from bodies


def _jumping() -> Iterator[Message]:
    """Numbers that never follow each other."""
    body = payload(stored(_blocks(4)))
    for each in range(1_000_000):
        yield frames((each * 7_919_000) % _NUMBERS, body)


def _backwards() -> Iterator[Message]:
    body = payload(stored(_blocks(4)))
    for each in range(1_000_000, 0, -1):
        yield frames(each, body)


def _topics() -> Iterator[Message]:
    body = payload(stored(_blocks(1)))
    for each in range(1_000_000):
        yield frames(each, body, topic=b"kv@%d@%b" % (each, b"m" * 1_000))


def _parts() -> Iterator[Message]:
    """Messages of many parts, or of one."""
    for each in range(1_000_000):
        yield [b"kv@"] * (1 + each % 1_000)


_NESTED = b"\x91" * 100_000
MESSAGES: dict[str, Callable[[], Iterator[Message]]] = {
    "no-msgpack": lambda: _numbered(_of(b"\xc1" * 1_000, b"", b"\x93", bytes(range(256)))),
    "nested": lambda: _numbered(_of(_NESTED)),
    "claimed-length": lambda: _numbered(_of(b"\x93\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff")),
    "large-events": lambda: _numbered(_large(20_000)),
    "many-events": lambda: _numbered(_many(20_000)),
    "many-small-batches": lambda: _numbered(_many(1)),
    "many-removed": lambda: _numbered(_removing(200_000)),
    "one-message-of-60mb": lambda: _numbered(_of(b"\x93\x00\xc6\x03\x93\x87\x00" + bytes(60 * MB))),
    "empty-events": lambda: _numbered(_of(payload(*[{}] * 200_000))),
    "cleared": lambda: _numbered(_of(payload(*[{"type": "AllBlocksCleared"}] * 100_000))),
    "jumping": _jumping,
    "backwards": _backwards,
    "topics": _topics,
    "parts": _parts,
}


async def _published(field: Ground, messages: Callable[[], Iterator[Message]]) -> int:
    loop, sent = asyncio.get_running_loop(), 0
    publisher = ZmqPublisher(replays=False)
    publisher.port = field.events_port
    async with publisher.open():
        await publisher.heard()
        end = loop.time() + _ATTACK_S
        for message in messages():
            await publisher.send(message)
            sent += sum(map(len, message))
            await asyncio.sleep(0)
            if loop.time() > end:
                break
        await asyncio.sleep(1)
    return sent


def _prompt(text: str) -> tuple[str, bytes]:
    return COMPLETIONS, json.dumps({"model": "m", "prompt": text}).encode()


def _chat(count: int, text: str) -> tuple[str, bytes]:
    messages = [{"role": "user", "content": text}] * count
    return CHAT, json.dumps({"model": "m", "messages": messages}).encode()


PROMPTS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "one-word": lambda: _prompt("a" * MB),
    "spaces": lambda: _prompt(" " * MB),
    "newlines": lambda: _prompt("\n" * MB),
    "specials": lambda: _prompt("<|im_start|>" * (MB // 12)),
    "half-specials": lambda: _prompt("<|im_star" * (MB // 9)),
    "marks": lambda: _prompt("e" + "\u0301" * (MB // 2)),
    "wide": lambda: _prompt("\U0001f642" * (MB // 4)),
    "surrogates": lambda: (COMPLETIONS, b'{"model":"m","prompt":"' + b"\\ud800" * 100_000 + b'"}'),
    "punctuation": lambda: _prompt("!?" * (MB // 2)),
    "many-messages": lambda: _chat(20_000, "hi"),
    "template-words": lambda: _chat(100, "{{ 7 * 7 }}{% for x in y %}" * 300),
    "own-template": lambda: (
        CHAT,
        json.dumps(
            {
                "model": "m",
                "messages": [{"role": "user", "content": "x"}],
                "chat_template": "{% for a in range(99999999) %}{{ a }}{% endfor %}",
                "chat_template_kwargs": {"messages": "x" * 1000},
            }
        ).encode(),
    ),
}


async def _tokenized(field: Ground, make: Callable[[], tuple[str, bytes]]) -> int:
    path, data = make()
    async with field.channel() as channel:
        for _ in range(3):
            await asyncio.gather(*(send(channel, path, data) for _ in range(4)))
    return 12 * len(data)


def attacks() -> Iterator[Attack]:
    """Publishers first: prompts fill caches."""
    for name, messages in MESSAGES.items():
        strike = partial(_published, messages=messages)
        yield Attack(name=f"events-{name}", row="more", strike=strike, setting=EVENTS)
    for name, make in PROMPTS.items():
        strike = partial(_tokenized, make=make)
        yield Attack(name=f"tokens-{name}", row="more", strike=strike, setting=EVENTS, seconds=30)
