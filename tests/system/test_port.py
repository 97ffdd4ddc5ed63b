"""A port that is bound before it accepts."""

import asyncio
import contextlib

import pytest

from epp.system.port import Port

HERE = "127.0.0.1"
DEADLINE = 10


@contextlib.asynccontextmanager
async def bound(take):
    made = Port(HERE, 0, take)
    try:
        yield made
    finally:
        made.close()


async def test_it_refuses_until_it_is_opened_and_then_takes_all():
    taken = []

    def take(connection):
        with connection:
            taken.append(connection.getpeername())

    async with bound(take) as port:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HERE, port.port)
        port.open()
        port.open()
        peers = [await asyncio.open_connection(HERE, port.port) for _ in range(100)]
        async with asyncio.timeout(DEADLINE):
            for reader, writer in peers:
                assert await reader.read() == b""
                writer.close()
        assert set(taken) == {writer.get_extra_info("sockname") for _, writer in peers}


async def test_a_port_that_is_taken_is_said():
    async with bound(lambda connection: connection.close()) as port:
        port.open()
        with pytest.raises(OSError, match="in use"):
            Port(HERE, port.port, lambda connection: connection.close())
