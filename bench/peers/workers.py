"""Model servers that answer when they are told to, and say which of them was asked.

They speak as much of vLLM and SGLang as routers ask for: chat completions as a stream, models,
health, vLLM's rendering of prompts as tokens, and KV events of prompts that were computed.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import zmq
import zmq.asyncio
from aiohttp import web
from aiohttp.test_utils import get_unused_port_socket

from bench.peers.traffic import BLOCK, tokens_of
from tests.kvpublisher import Publisher, stored

MODEL = "m"
_HOST = "127.0.0.1"
_LARGEST = 1 << 26
"""Bytes of a body."""
_SHUTDOWN_SECONDS = 1.0
_QUIET = logging.getLogger("bench.peers.workers")
_QUIET.setLevel(logging.CRITICAL)
"""sglang-router tries HTTP/2 first, which aiohttp says is an error."""
_CHUNK = (
    b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{"role":"assistant","content":"x"},"finish_reason":null}]}\n\n'
)


class Address(NamedTuple):
    """Where a worker serves HTTP, and where it publishes KV events."""

    url: str
    events: str


class _Gates(NamedTuple):
    """What a request waits for before its first token and its end, and the worker that has it."""

    begin: asyncio.Event
    end: asyncio.Event
    arrived: "asyncio.Future[int]"


class Workers:
    """Workers by number, from 0. Requests are known by the `seed` of their bodies."""

    def __init__(self) -> None:
        self.addresses: Sequence[Address] = ()
        self._gates: defaultdict[int, _Gates] = defaultdict(
            lambda: _Gates(
                asyncio.Event(), asyncio.Event(), asyncio.get_running_loop().create_future()
            )
        )

    async def arrival(self, request: int) -> int:
        """Wait until a request has arrived; return the number of its worker."""
        return await self._gates[request].arrived

    def begin(self, request: int) -> None:
        """Send the first token of a request."""
        self._gates[request].begin.set()

    def end(self, request: int) -> None:
        """Send the end of a response, and its first token unless it was sent."""
        self._gates[request].begin.set()
        self._gates[request].end.set()

    def end_all(self) -> None:
        """End all requests that are there."""
        for request in list(self._gates):
            self.end(request)

    async def hold(self, worker: int, request: web.Request, number: int) -> web.StreamResponse:
        """Answer a request when it is told to."""
        gates = self._gates[number]
        if not gates.arrived.done():
            gates.arrived.set_result(worker)
        await gates.begin.wait()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_CHUNK)
        await gates.end.wait()
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


class _Worker:
    def __init__(self, number: int, workers: Workers, events: zmq.asyncio.Socket) -> None:
        self._number = number
        self._workers = workers
        self._events = events
        self._publisher = Publisher()
        self._computed: set[int] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_LARGEST)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/chat/completions/render", self._render)
        app.router.add_get("/v1/models", self._models)
        app.router.add_route("*", "/{any:.*}", self._anything)
        return app

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        await self._publish(_tokens(body))
        return await self._workers.hold(self._number, request, body["seed"])

    async def _publish(self, tokens: Sequence[int]) -> None:
        """Publish the blocks of a prompt that were not computed before."""
        hashes, known, last = [], 0, 0
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            last = hash((last, tuple(tokens[at : at + BLOCK]))) & (1 << 63) - 1
            hashes.append(last)
            known += last in self._computed
        if known == len(hashes):
            return
        self._computed.update(hashes)
        parent = hashes[known - 1] if known else None
        fresh = tokens[known * BLOCK : len(hashes) * BLOCK]
        _, *frames = self._publisher.publish(stored(hashes[known:], parent, fresh, BLOCK))
        await self._events.send_multipart([b"", *frames])

    async def _render(self, request: web.Request) -> web.Response:
        return web.json_response({"token_ids": _tokens(await request.json())})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _anything(self, request: web.Request) -> web.Response:
        said = {"status": "ok", "model_path": MODEL, "model_id": MODEL, "version": "0"}
        return web.json_response(said)


def _tokens(body: dict[str, Any]) -> list[int]:
    return tokens_of("".join(each["content"] for each in body["messages"]))


@asynccontextmanager
async def started(count: int) -> AsyncIterator[Workers]:
    """Have this many workers serve."""
    workers, addresses, runners = Workers(), [], []
    context = zmq.asyncio.Context()
    try:
        for number in range(count):
            events = context.socket(zmq.PUB)
            port = events.bind_to_random_port(f"tcp://{_HOST}")
            app = _Worker(number, workers, events).app()
            runner = web.AppRunner(app, shutdown_timeout=_SHUTDOWN_SECONDS, logger=_QUIET)
            runners.append(runner)
            await runner.setup()
            served = get_unused_port_socket(_HOST)
            await web.SockSite(runner, served).start()
            url = f"http://{_HOST}:{served.getsockname()[1]}"
            addresses.append(Address(url, f"tcp://{_HOST}:{port}"))
        workers.addresses = addresses
        yield workers
    finally:
        for runner in runners:
            await runner.cleanup()
        context.destroy(linger=0)
