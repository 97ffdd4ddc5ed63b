"""Canned model servers: one process, N ports, HTTP/1.1 keep-alive, next to no work.

    python -m bench.extproc.backends --count 10

prints one JSON line with the ports and serves until it is told to stop. A response is a JSON
document, or a token stream where the request's `x-bench` header asks for chunks.
"""

import argparse
import asyncio
import json
import signal
from functools import partial
from typing import cast

import uvloop

from bench.extproc.body_end import END_OF_HEAD, BodyEnd
from bench.extproc.reply import (
    STREAM_HEAD,
    TOKEN,
    Ask,
    MetricsPage,
    PromptCache,
    json_response,
    stream_end,
)


class Engine:
    """What the connections of one port share."""

    def __init__(self, page: MetricsPage) -> None:
        self.cache = PromptCache()
        self.page = page
        self.running = 0


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time. Bodies are counted, not kept."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self._body: BodyEnd | None = None
        self._ask = Ask(0, 0, 0, 0, 0.0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        body = self._body
        if body is None:
            self._head += data
            head, mark, data = self._head.partition(END_OF_HEAD)
            if not mark:
                return
            self._head = b""
            if head.startswith(b"GET "):
                self._transport.write(self._engine.page.response(self._engine.running))
                return
            head = head.lower()
            self._ask = Ask.parse(head)
            body = self._body = BodyEnd(head)
        if body.reached(data):
            self._body = None
            self._respond()

    def _respond(self) -> None:
        ask = self._ask
        cached = self._engine.cache.admit(ask)
        if not ask.chunks:
            self._transport.write(json_response(ask, cached))
            return
        self._engine.running += 1
        if ask.chunks == 1:
            self._transport.write(STREAM_HEAD + stream_end(ask, cached))
            self._engine.running -= 1
            return
        self._transport.write(STREAM_HEAD + TOKEN)
        self._next(ask, cached, ask.chunks - 2, self._loop.time() + ask.interval)

    def _next(self, ask: Ask, cached: int, left: int, at: float) -> None:
        self._loop.call_at(at, self._token, ask, cached, left, at)

    def _token(self, ask: Ask, cached: int, left: int, at: float) -> None:
        if self._transport.is_closing():
            self._engine.running -= 1
        elif left:
            self._transport.write(TOKEN)
            self._next(ask, cached, left - 1, at + ask.interval)
        else:
            self._transport.write(stream_end(ask, cached))
            self._engine.running -= 1


async def serve(count: int) -> None:
    """Listen on `count` free ports of the loopback address until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    page = MetricsPage()
    servers = [
        await loop.create_server(partial(Connection, Engine(page)), "127.0.0.1", 0)
        for _ in range(count)
    ]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print(json.dumps({"event": "listening", "ports": ports}), flush=True)
    await stop.wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="canned model servers")
    parser.add_argument("--count", type=int, default=10, help="number of servers (ports)")
    uvloop.run(serve(parser.parse_args().count))


if __name__ == "__main__":
    main()
