"""Attacks on the TLS port: handshakes that nobody ends."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from bench.adversary.attack import FLOOR_MB, Attack
from bench.adversary.ground import Ground, Setting
from bench.adversary.wires import closed, opened
from tests.native import wire

_AT_ONCE = 100
_ANSWER_S = 5.0
HANDSHAKES = 10_000
_SILENT, _HANDSHAKE_MB = 1_000, 0.06
"""What OpenSSL and uvloop keep of a handshake that has begun."""


async def _abandoned(ground: Ground, said: bytes, *, wait: bool, count: int) -> int:
    """Handshakes that end after the client's first words; `wait`: once the server has answered."""

    async def one() -> None:
        pair = await opened(ground.port)
        reader, writer = pair
        with suppress(ConnectionError, TimeoutError):
            writer.write(said)
            if wait:
                async with asyncio.timeout(_ANSWER_S):
                    await reader.read(1)
            else:
                await writer.drain()
        await closed(pair)

    async def several(number: int) -> None:
        for _ in range(number):
            if not ground.process.alive():
                return
            await one()

    await asyncio.gather(*(several(count // _AT_ONCE) for _ in range(_AT_ONCE)))
    return count * len(said)


async def _silent(ground: Ground, said: bytes) -> int:
    """Handshakes that stop and stay, many at once."""
    pairs = [await opened(ground.port) for _ in range(_SILENT)]
    for _, writer in pairs:
        writer.write(said)
    await asyncio.sleep(3)
    await closed(*pairs)
    return _SILENT * len(said)


def attacks() -> Iterator[Attack]:
    """All on a picker that serves TLS."""
    hello, setting = wire.client_hello(), Setting(tls=True)
    for name, said, wait in (
        ("connects", b"", False),
        ("half-hellos", hello[:100], False),
        ("hellos", hello, False),
        ("answered-hellos", hello, True),
        ("noise-after-hello", hello + bytes(200), True),
    ):
        strike = partial(_abandoned, said=said, wait=wait, count=HANDSHAKES)
        yield Attack(
            name=f"tls-{name}", group="tls", strike=strike, setting=setting, seconds=60, most_mb=64
        )
    for name, said, least_mb in (
        ("silent", hello[:100], FLOOR_MB),
        ("silent-hellos", hello, FLOOR_MB + _SILENT * _HANDSHAKE_MB),
    ):
        strike = partial(_silent, said=said)
        yield Attack(
            name=f"tls-{name}", group="tls", strike=strike, setting=setting, least_mb=least_mb
        )
