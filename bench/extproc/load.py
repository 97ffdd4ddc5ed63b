"""The load generator, a process of its own: orders come in on stdin, results go out on stdout.

    python -m bench.extproc.load

One order and one result is one line of JSON (`Order`, `Result`). It ends with its stdin.
"""

import asyncio
import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator

import msgspec
import uvloop

from bench.extproc.client import Answer, Connection
from bench.extproc.workload import Shape, requests

_LINE_LIMIT = 1 << 24


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Send requests of a shape to a port for `seconds`, then wait for what is under way.

    Without `rate` every connection sends as soon as its last answer is whole (closed loop). With
    it, requests leave at random moments (Poisson, the same ones for the same `seed`; at even ones
    where `steady`), `rate` a second on average, on any idle connection; more are opened when none
    is (open loop).
    `limit`, where not 0, ends the run after that many requests.
    """

    port: int
    shape: Shape
    seconds: float
    connections: int
    rate: float = 0.0
    steady: bool = False
    seed: int = 0
    limit: int = 0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came back. `statuses` counts answers by status (0: connection lost).

    `seconds` runs from the first request to the last answer, `peak` is the most requests under
    way at once, `first_byte_ms` holds the time to the response's head of each request.
    """

    statuses: dict[int, int]
    seconds: float
    peak: int
    first_byte_ms: list[float]

    @property
    def requests(self) -> int:
        """Answers of any kind."""
        return sum(self.statuses.values())

    @property
    def failed(self) -> int:
        """Answers that were not a 200."""
        return self.requests - self.statuses.get(200, 0)


class _Run:
    def __init__(self, order: Order, source: Iterator[tuple[bytes, ...]]) -> None:
        self._order = order
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self._connections: list[Connection] = []
        self._statuses: Counter[int] = Counter()
        self._first_byte_ms: list[float] = []
        self._sent = 0
        self._under_way = 0
        self._peak = 0
        self._settled = asyncio.Event()
        self._deadline = 0.0

    async def result(self) -> Result:
        await asyncio.gather(*(self._connect() for _ in range(self._order.connections)))
        self._idle = list(self._connections)
        started = self._loop.time()
        self._deadline = started + self._order.seconds
        if self._order.rate:
            await self._open_loop()
        else:
            for connection in self._idle:
                self._send(connection)
        while self._under_way:
            self._settled.clear()
            await self._settled.wait()
        seconds = self._loop.time() - started
        for connection in self._connections:
            connection.close()
        return Result(
            statuses=dict(self._statuses),
            seconds=seconds,
            peak=self._peak,
            first_byte_ms=self._first_byte_ms,
        )

    async def _open_loop(self) -> None:
        rng = random.Random(self._order.seed)
        rate = self._order.rate
        at = self._loop.time()
        while self._more():
            at += 1 / rate if self._order.steady else rng.expovariate(rate)
            await asyncio.sleep(max(0.0, at - self._loop.time()))
            while self._idle and not self._idle[-1].alive:
                self._idle.pop()
            self._send(self._idle.pop() if self._idle else await self._connect())

    def _more(self) -> bool:
        limit = self._order.limit
        return self._loop.time() < self._deadline and (not limit or self._sent < limit)

    async def _connect(self) -> Connection:
        _, connection = await self._loop.create_connection(
            Connection, "127.0.0.1", self._order.port
        )
        self._connections.append(connection)
        return connection

    def _send(self, connection: Connection) -> None:
        self._sent += 1
        self._under_way += 1
        self._peak = max(self._peak, self._under_way)
        connection.send(next(self._source), self._done)

    def _done(self, connection: Connection, answer: Answer) -> None:
        self._under_way -= 1
        self._statuses[answer.status] += 1
        self._first_byte_ms.append(answer.first_byte_s * 1e3)
        if self._order.rate:
            self._idle.append(connection)
        elif connection.alive and self._more():
            self._loop.call_soon(self._send, connection)
            return
        if not self._under_way:
            self._settled.set()


async def _orders() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sources: dict[Shape, Iterator[tuple[bytes, ...]]] = {}
    while line := await reader.readline():
        order = msgspec.json.decode(line, type=Order)
        source = sources.get(order.shape)
        if source is None:
            salt = f"{os.getpid():08x}{len(sources):04x}"
            source = sources[order.shape] = requests(order.shape, host="bench.local", salt=salt)
            next(source)
        gc.collect()
        result = await _Run(order, source).result()
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        sys.stdout.flush()


def main() -> None:
    """Serve orders until stdin ends. The collector rests: pauses would count as latency."""
    gc.disable()
    uvloop.run(_orders())


if __name__ == "__main__":
    main()
