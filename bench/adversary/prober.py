"""Good small requests at a steady rate, from a process of its own: what others feel of an attack.

    python -m bench.adversary.prober

An `Order` on stdin says where to send them. Every further line ends a window: the `Window` since
the one before goes out on stdout, one line of JSON. It ends with its stdin.
"""

import asyncio
import gc
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import grpc
import grpc.aio
import msgspec

from bench.child import Child
from tests.adapters.ext_proc_peer import Peer, body, destination, head, response_body, response_head

RATE = 50.0
CONTROL_RATE = 25.0
CONNECTIONS = 2
_DEADLINE_S = 60.0
_LINE_LIMIT = 1 << 20
_NAME = "localhost"
"""What a self-signed certificate says."""


class Order(msgspec.Struct, frozen=True):
    """`target` is attacked, `control` another picker that is not; `cert` is both's, where TLS."""

    target: int
    control: int
    cert: str = ""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Answers and what is still waited for: milliseconds, and errors by what they said."""

    requests: int
    worst_ms: float
    control_ms: float
    errors: dict[str, int]


@asynccontextmanager
async def dial(port: int, cert: str) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own to a picker; `cert` is its certificate's file, "" for plaintext."""
    options: list[tuple[str, object]] = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.ssl_target_name_override", _NAME),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    where = f"127.0.0.1:{port}"
    if cert:
        trusted = grpc.ssl_channel_credentials(Path(cert).read_bytes())
        made = grpc.aio.secure_channel(where, trusted, options)
    else:
        made = grpc.aio.insecure_channel(where, options)
    async with made as channel:
        yield channel


class _Line:
    """Requests to one picker, which leave on time whether or not others were answered."""

    def __init__(self, port: int, rate: float, cert: str) -> None:
        self._port, self._rate, self._cert = port, rate, cert
        self._loop = asyncio.get_running_loop()
        self._open: dict[asyncio.Task[None], float] = {}
        self.done: list[float] = []
        self.errors: Counter[str] = Counter()

    async def run(self) -> None:
        async with AsyncExitStack() as exits:
            channels = [
                await exits.enter_async_context(dial(self._port, self._cert))
                for _ in range(CONNECTIONS)
            ]
            due, number = self._loop.time(), 0
            while True:
                number += 1
                task = asyncio.create_task(self._probe(channels[number % CONNECTIONS], number))
                self._open[task] = due
                task.add_done_callback(self._ended)
                due += 1 / self._rate
                await asyncio.sleep(max(0.0, due - self._loop.time()))

    async def _probe(self, channel: grpc.aio.Channel, number: int) -> None:
        try:
            peer = Peer(channel, _DEADLINE_S)
            reply = await peer.ask(head(), body(_chat(number)))
            assert reply is not None, "no reply"
            assert reply.WhichOneof("response") == "request_headers", str(reply)[:200]
            destination(reply, "request_headers")
            await peer.send(response_head(), response_body())
            await peer.call.done_writing()
            await peer.rest()
        except grpc.aio.AioRpcError as error:
            self.errors[f"{error.code().name} {error.details()}"[:120]] += 1
        except asyncio.InvalidStateError:
            self.errors["the stream ended early"] += 1
        except (ValueError, AssertionError) as error:
            self.errors[str(error)[:120]] += 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.done.append(self._loop.time() - self._open.pop(task))
        if not task.cancelled() and (error := task.exception()):
            self.errors[repr(error)[:120]] += 1

    def take(self) -> tuple[list[float], dict[str, int]]:
        """Milliseconds and errors since the last call; what is open counts with its age."""
        now = self._loop.time()
        ages = [now - started for started in self._open.values()]
        found = [1e3 * each for each in (*self.done, *ages)]
        errors = dict(self.errors)
        self.done.clear()
        self.errors.clear()
        return found, errors


def _chat(number: int) -> bytes:
    message = {"role": "user", "content": f"Say the number {number}, please."}
    return json.dumps({"model": "m", "messages": [message]}).encode()


async def _serve(stdin: asyncio.StreamReader) -> None:
    order = msgspec.json.decode(await stdin.readline(), type=Order)
    target = _Line(order.target, RATE, order.cert)
    control = _Line(order.control, CONTROL_RATE, order.cert)
    lines = [asyncio.create_task(line.run()) for line in (target, control)]
    while await stdin.readline():
        found, errors = target.take()
        beside, _ = control.take()
        window = Window(
            requests=len(found),
            worst_ms=round(max(found, default=0.0), 1),
            control_ms=round(max(beside, default=0.0), 1),
            errors=errors,
        )
        sys.stdout.buffer.write(msgspec.json.encode(window) + b"\n")
        sys.stdout.buffer.flush()
    for line in lines:
        line.cancel()
    await asyncio.gather(*lines, return_exceptions=True)


class Prober(Child):
    """The process as its owner sees it. An async context manager."""

    def __init__(self, order: Order) -> None:
        super().__init__("bench.adversary.prober", _LINE_LIMIT)
        self._order = order

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.tell(msgspec.json.encode(self._order))
        return self

    async def window(self) -> Window:
        """What was seen since the last call. Raises `MeasurementFailed`."""
        self.tell(b"next")
        return msgspec.json.decode(await self.answer(), type=Window)


async def main() -> None:
    """Probe until stdin ends."""
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin
    )
    await _serve(stdin)


if __name__ == "__main__":
    gc.freeze()
    gc.disable()  # its own pauses would count as the picker's
    asyncio.run(main())
