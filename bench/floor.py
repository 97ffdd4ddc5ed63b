"""The floor: the product's transport and codec around a handler that only parses the body.

    python -m bench.floor --port 9002 --target 127.0.0.1:8000

What the product costs beyond this is its policy, its model and its accounting.
"""

import argparse
import asyncio
import json
import signal
import time
from collections.abc import Callable
from typing import get_args

import msgspec
import uvloop

from epp.adapters.extproc.contract import ExtProcSettings
from epp.adapters.extproc.transports import Transport, server_class
from epp.errors import RequestError
from epp.model.decision import Decision
from epp.model.request import RequestId
from epp.protocol.bodies.body_reader import BodyData
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.messages import (
    Chunk,
    HeadersReply,
    Message,
    Mutation,
    Reply,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    TrailersReply,
)
from epp.protocol.extproc.names import DESTINATION
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.step import Step, Wants
from epp.system.memory import keep_freed_memory

CHUNK_BYTES = 62_000


class FixedExchange:
    """One stream in full duplex. It knows no pool, no policy, no clock and counts nothing."""

    held_bytes = 0
    awaits_request = False
    pending: PendingDecision | None = None
    record = RequestRecord(RequestId("floor"), 0.0)

    def __init__(self, target: str) -> None:
        self._mutation = Mutation(
            set_headers=((DESTINATION, target),), clear_route_cache=True, destination=target
        )
        self._pieces: list[BodyData] = []

    def receive(self, message: Message, now: float) -> Step:
        """The replies to one message, in order."""
        return Step(_HANDLERS[type(message)](self, message), Wants.NEXT)

    def resume(self, outcome: Decision | RequestError, now: float) -> Step:
        """Nothing is ever pending."""
        return Step([], Wants.NEXT)

    def proceed(self, now: float) -> Step:
        """Everything was said."""
        return Step([], Wants.NEXT)

    def fail(self, error: RequestError, now: float) -> Step:
        """A floor that fails measures nothing: the proxy sees the stream end."""
        return Step([], Wants.END)

    def half_closed(self, now: float) -> Step:
        """Nothing is owed."""
        return Step([], Wants.END)

    def cancelled(self, now: float) -> Step:
        """Nothing is kept."""
        return Step([], Wants.END)

    def request_headers(self, message: RequestHeaders) -> list[Reply]:
        """Withheld until the body is whole."""
        return [self._go()] if message.end_of_stream else []

    def request_body(self, message: RequestBody) -> list[Reply]:
        """Collected; the last piece lets everything go."""
        self._pieces.append(message.body)
        return self._decided() if message.end_of_stream else []

    def request_trailers(self, message: RequestTrailers) -> list[Reply]:
        """The other way in which a body may end."""
        return [*self._decided(), TrailersReply(response=False)]

    def _go(self) -> HeadersReply:
        return HeadersReply(response=False, mutation=self._mutation)

    def _decided(self) -> list[Reply]:
        body = b"".join(self._pieces)
        msgspec.json.decode(body)
        replies: list[Reply] = [self._go()]
        for start in range(0, len(body), CHUNK_BYTES):
            end = start + CHUNK_BYTES
            replies.append(
                Chunk(response=False, body=body[start:end], end_of_stream=end >= len(body))
            )
        return replies


def _response_body(_: FixedExchange, message: ResponseBody) -> list[Reply]:
    return [Chunk(response=True, body=message.body, end_of_stream=message.end_of_stream)]


_HANDLERS: dict[type, Callable[..., list[Reply]]] = {
    RequestHeaders: FixedExchange.request_headers,
    RequestBody: FixedExchange.request_body,
    RequestTrailers: FixedExchange.request_trailers,
    ResponseHeaders: lambda _exchange, _message: [HeadersReply(response=True)],
    ResponseBody: _response_body,
    ResponseTrailers: lambda _exchange, _message: [TrailersReply(response=True)],
}


async def serve(port: int, target: str, transport: Transport) -> None:
    """Answer `target` to everybody on 127.0.0.1 until SIGTERM; one JSON line says the port."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = server_class(transport)(
        lambda _now: FixedExchange(target),
        time.monotonic,
        ExtProcSettings(address="127.0.0.1", port=port),
    )
    await server.start()
    print(json.dumps({"event": "listening", "port": server.port}), flush=True)
    await stop.wait()
    await server.stop(grace=1.0)


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="the floor of the benchmark extproc")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--target", required=True, help="ip:port that every request goes to")
    parser.add_argument("--transport", choices=get_args(Transport), default="grpcio")
    options = parser.parse_args()
    keep_freed_memory()  # as the product does
    uvloop.run(serve(options.port, options.target, options.transport))


if __name__ == "__main__":
    main()
