"""One replica as a process of its own, for what is measured between several over loopback.

It is told JSON lines and answers each with one. Its arguments are its number and, if there is one,
the address of the server in between.
"""

import asyncio
import sys
import time

import msgspec
import uvloop

from bench.replicas.replica import BLOCK, Replica
from epp.adapters.telemetry.logs import configure_logs
from epp.model.events import Listed
from epp.model.kv_changes import CacheCopied
from epp.model.prompts.hashing import BlockHash

_CHARACTERS = 2048


class Order(msgspec.Struct, kw_only=True):
    """What a replica is to do; what is not said it does not do."""

    peers: list[int] = []
    """Connect to the replicas at these ports."""
    endpoints: int = 0
    """Endpoints to know from here on."""
    room: int = 1000
    """Blocks of each endpoint's cache."""
    blocks: int = 0
    """Blocks that each endpoint is believed to hold."""
    warm: bool = False
    """Wait until it is warm."""
    rate: float = 0.0
    """Requests a second to send."""
    seconds: float = 0.0
    """For how long to send them."""
    metrics: bool = False
    """Say what its metrics are."""


class Station:
    """The replica, and what it is told to do."""

    def __init__(self, number: int, server: str = "") -> None:
        self._replica = Replica(number, server)

    async def serve(self) -> None:
        """Do what it is told until there is no more."""
        loop = asyncio.get_running_loop()
        async with self._replica.running():
            print(self._replica.port, flush=True)
            while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
                answer = await self._do(msgspec.json.decode(line, type=Order))
                print(msgspec.json.encode(answer).decode(), flush=True)

    async def _do(self, order: Order) -> dict[str, float]:
        began = time.monotonic()
        self._replica.connect(*order.peers)
        self._know(order.endpoints, order.room, order.blocks)
        while order.warm and not self._replica.replicas.warm:
            await asyncio.sleep(0.005)
        warm = time.monotonic() - began
        if order.rate:
            await self._send(order.rate, order.seconds)
        found = {
            "seconds": warm,
            "blocks": float(self._replica.fleet.indexed_blocks),
            "cpu": time.process_time(),
        }
        return found | (self._metrics() if order.metrics else {})

    def _know(self, endpoints: int, room: int, blocks: int) -> None:
        fleet, chance = self._replica.fleet, self._replica.chance
        for endpoint in self._replica.know(endpoints, room):
            if blocks:
                held = [BlockHash(chance.getrandbits(64)) for _ in range(blocks)]
                copied = CacheCopied(endpoint.id, held, [BLOCK] * blocks, closed=True)
                fleet.apply(copied, time.monotonic())
        if endpoints:
            fleet.apply(Listed(), time.monotonic())

    async def _send(self, rate: float, seconds: float) -> None:
        """Send requests at random moments."""
        end, due = time.monotonic() + seconds, time.monotonic()
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += self._replica.chance.expovariate(rate)
            self._replica.serve(_CHARACTERS)

    def _metrics(self) -> dict[str, float]:
        observer = self._replica.replicas.observer
        assert observer.collect is not None
        lines = "".join(each.lines() for each in observer.collect()).splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


if __name__ == "__main__":
    configure_logs("error", "json")
    uvloop.run(Station(int(sys.argv[1]), *sys.argv[2:]).serve())
