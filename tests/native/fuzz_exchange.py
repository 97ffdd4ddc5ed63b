"""The target `exchange`: a connection of the native transport with real exchanges behind it."""

import asyncio
import atexit
import time
from collections import Counter

from epp.adapters.extproc.contract import ExtProcSettings
from epp.adapters.extproc.native import NativeServer
from epp.errors import Overloaded
from epp.protocol.extproc.director import PendingDecision
from tests.adapters.ext_proc_peer import (
    BUFFERED,
    CHAT,
    DECISION,
    DUPLEX,
    NONE,
    STREAMED,
    Director,
    body,
    head,
    response_body,
    response_head,
)
from tests.native import wire

MODES = (DUPLEX, STREAMED, BUFFERED, NONE)
_loop = asyncio.new_event_loop()
atexit.register(_loop.close)


class Wire(asyncio.Transport):
    """Keeps what is written; reads nothing by itself."""

    def __init__(self):
        super().__init__()
        self.closing = False

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_extra_info(self, name, default=None):
        return default

    def is_closing(self):
        return self.closing

    def write(self, data):
        assert isinstance(data, bytes)

    def close(self):
        self.closing = True

    abort = close

    def pause_reading(self):
        pass

    resume_reading = pause_reading


class Moody(Director):
    """Decides at once, later, or not."""

    def __init__(self, choices):
        super().__init__()
        self.choices = choices

    def route(self, request, now):
        self.answer = (DECISION, None, Overloaded("no"), ZeroDivisionError())[self.choices.below(4)]
        made = super().route(request, now)
        if isinstance(made, PendingDecision):
            asyncio.get_running_loop().call_soon(made.decided, DECISION)
        return made


def _said(choices):
    modes = (choices.one_of(MODES), choices.one_of(MODES))
    end = choices.below(2) == 1
    made = choices.one_of(
        (
            lambda: head(modes, choices.one_of(("POST", "GET")), end=end),
            lambda: body(CHAT, end=end),
            lambda: body(choices.bytes(choices.below(40)), end=end),
            lambda: response_head(end=end),
            lambda: response_body(choices.bytes(choices.below(40)), end=end),
        )
    )()
    data = bytearray(made.SerializeToString())
    if choices.below(8) == 7 and data:
        data[choices.below(len(data))] = choices.below(256)
    return wire.message(bytes(data))


def _sent(choices, opened):
    kind = choices.below(8)
    if kind == 0 or not opened:
        opened.append(2 * len(opened) + 1)
        return wire.headers(opened[-1])
    number = choices.one_of(opened[-4:])
    if kind == 1:
        return wire.reset(number)
    said = b"".join(_said(choices) for _ in range(choices.below(4)))
    return wire.data(number, said, end=choices.below(8) == 7)


def converse(choices):
    """Run one connection from its first byte to its loss."""
    _loop.run_until_complete(_converse(choices))


async def _converse(choices):
    director = Moody(choices)
    settings = ExtProcSettings(address="127.0.0.1", port=0)
    server = NativeServer(director.exchange, time.monotonic, settings)
    connection, transport = server.accept(), Wire()
    connection.connection_made(transport)
    connection.data_received(wire.greeting())
    opened: list[int] = []
    while choices.left and not transport.closing:
        data = _sent(choices, opened)
        cut = choices.below(len(data) + 1)
        connection.data_received(data[:cut])
        if choices.below(4) == 3:
            await asyncio.sleep(0)
        connection.data_received(data[cut:])
    connection.connection_lost(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert server.streams == 0
    ends = Counter(record.id for record in director.records)
    assert set(ends.values()) <= {1}
    assert len(ends) == director.opened
