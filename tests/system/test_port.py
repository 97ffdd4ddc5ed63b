"""A port that is bound before it accepts."""

import asyncio
import contextlib
import errno
import socket

import pytest

from epp.system.port import Port
from tests.loopbacks import loopbacks

HERE = "127.0.0.1"
DEADLINE = 10


@contextlib.asynccontextmanager
async def bound(take, address=HERE):
    made = Port(address, 0, take)
    try:
        yield made
    finally:
        made.close()


def test_a_port_that_is_taken_is_named():
    with socket.create_server((HERE, 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {number}: Address already in use") as refused:
            Port(HERE, number, lambda connection: connection.close())
    assert refused.value.errno == errno.EADDRINUSE


async def test_it_refuses_until_it_is_opened_and_then_takes_all():
    taken = []

    def take(connection):
        with connection:
            taken.append(connection.getpeername())

    async with bound(take) as port:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HERE, port.port)
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


@pytest.mark.parametrize("address", ["", "::"])
async def test_all_addresses_are_of_both_families(address):
    async with bound(lambda connection: connection.close(), address) as port:
        port.open()
        for host in loopbacks():
            _, writer = await asyncio.open_connection(host.strip("[]"), port.port)
            writer.close()


@pytest.mark.parametrize("address", ["", "::"])
async def test_where_there_is_no_ipv6_they_are_of_the_other(address, monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    async with bound(lambda connection: connection.close(), address) as port:
        port.open()
        _, writer = await asyncio.open_connection(HERE, port.port)
        writer.close()
