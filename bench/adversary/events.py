"""Attacks by publishers of KV events, and by prompts that are hard to tokenize."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import msgspec

from bench.adversary.attack import Attack
from bench.adversary.bodies import CHAT, COMPLETIONS, send
from bench.adversary.ground import EVENTS, SERVERS, Ground
from tests.adapters.zmq_publisher import ZmqPublisher
from tests.kvpublisher import frames, payload, removed, stored

MB = 1 << 20
_ATTACK_S = 3.0
_NUMBERS = 1 << 62
_SETS = 10
"""Of different blocks: a picker may remember a million of each server."""

Message = list[bytes]


def _blocks(count: int, start: int = 0) -> list[bytes]:
    return [(start + each).to_bytes(8, "big") for each in range(count)]


def _numbered(bodies: Iterator[bytes]) -> Iterator[Message]:
    return (frames(number, body) for number, body in enumerate(bodies))


def _large(count: int) -> Iterator[bytes]:
    """Batches of one event with this many blocks."""
    for number in range(1_000_000):
        yield payload(stored(_blocks(count, number % _SETS * count)))


def _many(count: int) -> Iterator[bytes]:
    """Batches of this many events of one block."""
    for number in range(1_000_000):
        yield payload(*(stored([each]) for each in _blocks(count, number % _SETS * count)))


def _removing(count: int) -> Iterator[bytes]:
    one = payload(removed(*_blocks(count)))
    return iter([one] * 1_000)


def _compact(count: int) -> Iterator[bytes]:
    """Batches of as many events as are read, each as short as it can be."""
    for start in range(0, 1 << 30, count):
        names = range(start, start + count)
        yield payload(*(["BlockStored", [each], None, [0] * 16, 16] for each in names))
        yield payload(*(["BlockRemoved", [each]] for each in names))


def _small_pages() -> Iterator[bytes]:
    """Blocks of one token, each after the one before it."""
    for start in range(0, 1 << 30, 30_000):
        names = range(start, start + 30_000)
        tokens = [start // 30_000 % 100] * len(names)
        yield payload(["BlockStored", list(names), None, tokens, 1])


def _long_blocks() -> Iterator[bytes]:
    for start in range(0, 1 << 30, 7):
        names = range(start, start + 7)
        yield payload(
            *(["BlockStored", [each], None, [each % 100] * 32_000, 32_000] for each in names)
        )


def _images() -> Iterator[bytes]:
    for start in range(0, 1 << 30, 8_000):
        names = range(start, start + 8_000)
        yield payload(stored(names, extra_keys=[[["image", each]] for each in names]))


def _one_shard() -> Iterator[bytes]:
    """Names that a table of them would put side by side."""
    for start in range(0, 1 << 40, 12_000 << 12):
        yield payload(stored(range(start, start + (12_000 << 12), 1 << 12)))


_FILLED = 30
"""Batches of different blocks: 360,000 of each server."""


def _filled(*then: bytes) -> Iterator[bytes]:
    """As much as is known of a server, and then what ends all that."""
    for start in range(0, 1 << 40, _FILLED * 12_000):
        for first in range(start, start + _FILLED * 12_000, 12_000):
            yield payload(stored(_blocks(12_000, first)))
        yield from then


def _gaps() -> Iterator[Message]:
    """The same, and then a number is left out."""
    for number, body in enumerate(_filled(b"")):
        if body:
            yield frames(number, body)


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


def _framed() -> Iterator[Message]:
    """Messages of so many frames that taking one is work."""
    for _ in range(10):
        yield [b""] * 10_000


def _again(body: bytes) -> Iterator[Message]:
    """One number again and again: whether a batch is old is then looked at."""
    yield frames(5, payload(stored(_blocks(1))))
    for _ in range(100_000):
        yield frames(5, body)


_BLOCK = 32
"""Tokens of blocks that are twice as long as the picker's."""


def _same_content() -> Iterator[bytes]:
    """Blocks by many names that hold the same tokens, and all of them gone at once."""
    names = range(30_000)
    for start in range(0, len(names), 3_000):
        some = names[start : start + 3_000]
        yield payload(*(stored([each], tokens=[0] * _BLOCK, size=_BLOCK) for each in some))
    yield payload(removed(*names))
    yield from _same_content()


def _groups() -> Iterator[bytes]:
    """Each block in a group of its own."""
    for start in range(0, 1 << 30, 4_000):
        some = range(start, start + 4_000)
        yield payload(*(stored([each], group_idx=each) for each in some))
        yield payload(*(stored([each], group_idx=each, medium="DISK") for each in some))
        yield payload(*(removed(each, group_idx=each) for each in some))


def _renamed() -> Iterator[bytes]:
    """Blocks of one token, and then others by their names."""
    for number in range(1_000_000):
        names = range(30_000)
        yield payload(stored(names, tokens=[number % 100] * len(names), size=1, extra_keys=None))


_EVENT = stored([1, 2])
_VALUES: tuple[object, ...] = (
    *(None, -1, 1 << 63, 1.5, "x", b"x" * 1_000, [], [[]], {}, {"a": [1]}, True),
)
_SALT_VALUES: tuple[object, ...] = (5, True, 1.5, [1], {}, b"x", None, "x" * 10_000)
_CYCLE = payload(stored([1]), stored([2], parent=1), stored([1], parent=2), stored([3], parent=3))
_ODD_FIELDS = [_EVENT | {field: value} for field in _EVENT for value in _VALUES]
_SALTS = [
    ["BlockStored", [1], None, list(range(16)), 16, None, "GPU", {"cache_salt": salt}]
    for salt in _SALT_VALUES
]
_NESTED = b"\x91" * 100_000
MESSAGES: dict[str, Callable[[], Iterator[Message]]] = {
    "no-msgpack": lambda: _numbered(_of(b"\xc1" * 1_000, b"", b"\x93", bytes(range(256)))),
    "nested": lambda: _numbered(_of(_NESTED)),
    "claimed-length": lambda: _numbered(_of(b"\x93\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff")),
    "large-events": lambda: _numbered(_large(12_000)),
    "many-events": lambda: _numbered(_many(5_000)),
    "too-large-events": lambda: _numbered(_large(20_000)),
    "too-many-events": lambda: _numbered(_many(20_000)),
    "many-small-batches": lambda: _numbered(_many(1)),
    "too-many-removed": lambda: _numbered(_removing(200_000)),
    "compact": lambda: _numbered(_compact(20_000)),
    "small-pages": lambda: _numbered(_small_pages()),
    "long-blocks": lambda: _numbered(_long_blocks()),
    "images": lambda: _numbered(_images()),
    "one-shard": lambda: _numbered(_one_shard()),
    "filled-cleared": lambda: _numbered(_filled(payload(["AllBlocksCleared"]))),
    "filled-lost": lambda: _numbered(_filled(b"\xc1", b"\xc1", b"\xc1")),
    "filled-gap": _gaps,
    "one-message-of-60mb": lambda: _numbered(_of(b"\x93\x00\xc6\x03\x93\x87\x00" + bytes(60 * MB))),
    "empty-events": lambda: _numbered(_of(payload(*[{}] * 200_000))),
    "cleared": lambda: _numbered(_of(payload(*[["AllBlocksCleared"]] * 32_000))),
    "jumping": _jumping,
    "backwards": _backwards,
    "topics": _topics,
    "parts": _parts,
    "many-frames": _framed,
    "nested-again": lambda: _again(b"\x93\xcb" + bytes(8) + _NESTED),
    "no-text": lambda: _numbered(_of(b"\x92\xcb" + bytes(8) + b"\x91\x91\xa4\xff\xfe\xff\xfe")),
    "odd-fields": lambda: _numbered(_of(payload(*_ODD_FIELDS))),
    "odd-salts": lambda: _numbered(_of(payload(*_SALTS))),
    "cycle": lambda: _numbered(_of(_CYCLE)),
    "same-content": lambda: _numbered(_same_content()),
    "groups": lambda: _numbered(_groups()),
    "renamed": lambda: _numbered(_renamed()),
    "removed-at-once": lambda: _numbered(_of(payload(removed(*range(32_000))))),
    "not-a-time": lambda: _numbered(_of(msgspec.msgpack.encode([float("nan"), [], 0]))),
}


async def _published(ground: Ground, messages: Callable[[], Iterator[Message]]) -> int:
    loop, sent = asyncio.get_running_loop(), 0
    publisher = ZmqPublisher(replays=False)
    publisher.port = ground.events_port
    async with publisher.open():
        await _heard(publisher)
        end = loop.time() + _ATTACK_S
        for message in messages():
            await publisher.send(message)
            sent += sum(map(len, message))
            await asyncio.sleep(0)
            if loop.time() > end:
                break
        await asyncio.sleep(1)
    return sent * SERVERS  # each endpoint is subscribed to


async def _heard(publisher: ZmqPublisher) -> None:
    """Wait until the picker has read what it still has of the one before, and is back."""
    heard = False
    while not heard:
        with suppress(TimeoutError):
            await publisher.heard()
            heard = True


def _prompt(text: str) -> tuple[str, bytes]:
    return COMPLETIONS, json.dumps({"model": "m", "prompt": text}).encode()


def _chat(count: int, text: str | list[str], **more: object) -> tuple[str, bytes]:
    messages = [{"role": "user", "content": text}] * count
    return CHAT, json.dumps({"model": "m", "messages": messages, **more}).encode()


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
    "empty-messages": lambda: _chat(9_000, ""),
    "empty-parts": lambda: _chat(1, [""] * 60_000),
    "many-pieces": lambda: _prompt("".join(f"{each}<|im_end|>" for each in range(200_000))),
    "called-tools": lambda: _chat(
        1,
        "x",
        tools=[{"type": "function", "function": {"name": "f"}}] * 5_000,
        chat_template_kwargs={f"k{each}": [] for each in range(5_000)},
    ),
    "template-words": lambda: _chat(100, "{{ 7 * 7 }}{% for x in y %}" * 300),
    "own-template": lambda: _chat(
        1,
        "x",
        chat_template="{% for a in range(99999999) %}{{ a }}{% endfor %}",
        chat_template_kwargs={"messages": "x" * 1000},
    ),
}


LONG: dict[str, str] = {
    "a": "a",
    "digits": "7",
    "words": "the keeper of the lighthouse counted 42 boats ",
    "half-specials": "<|im_star",
    "noise": "".join(chr(33 + (each * each * 7 + each // 3) % 90) for each in range(1_000)),
    "wide": "\U0001f642",
}


def _long(text: str, number: int) -> tuple[str, bytes]:
    """The longest prompt that is tokenized; the number makes it another than those before."""
    text = str(number) + text * ((4 * MB - 200) // len(text.encode()))
    return COMPLETIONS, json.dumps({"model": "m", "prompt": text}, ensure_ascii=False).encode()


async def _flooded(ground: Ground, text: str) -> int:
    """More of the longest prompts than can be tokenized in the time."""
    sent = 0
    async with ground.channel() as channel:
        for first in range(0, 40, 4):
            bodies = [_long(text, number) for number in range(first, first + 4)]
            await asyncio.gather(*(send(channel, *body) for body in bodies))
            sent += sum(len(data) for _, data in bodies)
    return sent


async def _tokenized(ground: Ground, make: Callable[[], tuple[str, bytes]]) -> int:
    path, data = make()
    async with ground.channel() as channel:
        for _ in range(3):
            await asyncio.gather(*(send(channel, path, data) for _ in range(4)))
    return 12 * len(data)


def attacks() -> Iterator[Attack]:
    """Publishers first: prompts fill caches."""
    attack = partial(Attack, group="more", setting=EVENTS)
    for name, messages in MESSAGES.items():
        strike = partial(_published, messages=messages)
        yield attack(name=f"events-{name}", strike=strike, seconds=60)
    for name, make in PROMPTS.items():
        yield attack(name=f"tokens-{name}", strike=partial(_tokenized, make=make), seconds=30)
    for kind, text in LONG.items():
        yield attack(name=f"tokens-long-{kind}", strike=partial(_flooded, text=text), seconds=60)
