"""What one connection may bring between two looks at the others."""

import asyncio
import time

import pytest

from epp.adapters.extproc.contract import ExtProcSettings
from epp.adapters.extproc.limits import PeerLimits
from tests.adapters.ext_proc_peer import DEADLINE, Director
from tests.native import wire
from tests.native.built import needs_native

pytestmark = needs_native

MAX_AT_ONCE = 1 << 20
BURST = wire.greeting() + wire.frame(99, 0, b"x" * 16_000) * 500
"""Frames of a type that nobody knows, which are skipped (RFC 9113 §5.5)."""


class Counted(asyncio.Protocol):
    """A connection of the server, and the bytes that it is given in one pass of the loop."""

    def __init__(self, connection):
        self._connection = connection
        self.total = self.passed = self.most = 0

    def data_received(self, data):
        self.total += len(data)
        self.passed += len(data)
        self.most = max(self.most, self.passed)
        self._connection.data_received(data)

    def connection_made(self, transport):
        self._connection.connection_made(transport)

    def connection_lost(self, exc):
        self._connection.connection_lost(exc)

    def pause_writing(self):
        self._connection.pause_writing()

    def resume_writing(self):
        self._connection.resume_writing()


async def test_a_peer_that_fills_every_read_is_not_read_on_before_others():
    from epp.adapters.extproc.native import NativeServer  # noqa: PLC0415 (only where it is built)

    server = NativeServer(
        Director().exchange, time.monotonic, ExtProcSettings(address="127.0.0.1", port=0)
    )
    made = []

    def accept():
        made.append(Counted(server.accept()))
        return made[-1]

    loop = asyncio.get_running_loop()
    listener = await loop.create_server(accept, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    writer.write(BURST)
    async with asyncio.timeout(DEADLINE):
        while not made or made[0].total < len(BURST):
            for each in made:
                each.passed = 0
            await asyncio.sleep(0)
    assert made[0].most <= MAX_AT_ONCE
    writer.close()
    listener.close()


class Written(asyncio.Transport):
    """A transport that says in `order` by whom a ping was answered."""

    def __init__(self, name, order):
        super().__init__()
        self._name, self._order = name, order

    def write(self, data):
        frames, _ = wire.parse(data)
        self._order += [self._name for kind, *_ in frames if kind == wire.Kind.PING]

    def is_closing(self):
        return False

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def abort(self):
        pass

    close = abort


@pytest.mark.parametrize("seconds", [10.0, 0.0], ids=["", "whose greetings are due at once"])
async def test_who_is_there_does_not_wait_behind_all_who_are_new(seconds):
    from epp.adapters.extproc.native import NativeServer  # noqa: PLC0415 (only where it is built)

    limits = PeerLimits(handshake_seconds=seconds)
    server = NativeServer(Director().exchange, time.monotonic, ExtProcSettings(limits=limits))
    order: list[int | str] = []

    def connected(name):
        connection = server.accept()
        connection.connection_made(Written(name, order))
        return connection

    ping = wire.ping()
    there, much = connected("there"), connected("much")
    for each in (there, much):
        each.data_received(wire.greeting())
    new = [connected(number) for number in range(200)]
    for each in new:  # as the loop hands them over at one look at the sockets
        each.data_received(wire.greeting() + ping)
    much.data_received(wire.frame(99, 0, bytes(5_000)) + ping)
    there.data_received(ping)
    at_once = len(order)
    async with asyncio.timeout(DEADLINE):
        while len(order) < len(new) + 2:
            await asyncio.sleep(0)
    assert at_once < 50
    assert order.index("there") <= at_once + 1
    assert order[-1] == "much"
    assert set(order) == {"there", "much", *range(200)}
    for each in (there, much, *new):
        each.connection_lost(None)
