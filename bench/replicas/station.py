"""One replica as a process of its own, for what is measured between several over loopback.

It has the product's fleet and exchange, and makes requests by itself: no gateway and no pods.
It is told JSON lines and answers each with one. Its arguments are its number and, if there is one,
the address of the server in between.
"""

import asyncio
import itertools
import random
import sys
import time

import msgspec
import uvloop

from epp.adapters.replicas.redis_server import redis_server
from epp.adapters.replicas.settings import PeerAddress, ReplicaSettings
from epp.adapters.telemetry.logs import configure_logs
from epp.app.replicas.exchange import Replicas
from epp.model.endpoint import Endpoint, EndpointId, Load
from epp.model.events import EndpointUpserted, Listed, LoadReported
from epp.model.fleet import Fleet
from epp.model.kv_changes import CacheCopied
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.hashing import BlockHash
from epp.model.request import Api, InferenceRequest, Prompt, RequestId, Usage
from epp.model.request_events import Admitted, Finished, FirstToken

SECRET = b"a secret of the benchmark, long enough"
HERE = "127.0.0.1"
_BLOCK = 16


class Told(msgspec.Struct, kw_only=True):
    """What a replica is to do; what is not said it does not do."""

    peers: list[int] = []
    """Connect to the replicas at these ports."""
    endpoints: int = 0
    """Know so many endpoints from here on."""
    room: int = 1000
    """Each of them has so many blocks,"""
    blocks: int = 0
    """and is believed to hold so many."""
    warm: bool = False
    """Wait until it is warm."""
    rate: float = 0.0
    """Send so many requests a second,"""
    seconds: float = 0.0
    """for so long."""
    metrics: bool = False
    """Say what its metrics are."""


class Station:
    """The replica."""

    def __init__(self, number: int, server: str = "") -> None:
        self._chance = random.Random(number)
        self._names = itertools.count(number << 32)
        self._fleet = Fleet(BlockHasher(SECRET))
        self._peers: list[PeerAddress] = []
        redis = redis_server(server) if server else None
        settings = ReplicaSettings(
            peers=self._peers, port=0, look_up=0.1, warm_limit=30.0, redis=redis
        )
        self._replicas = Replicas(
            self._fleet, settings, SECRET, pool="bench", bind_address=HERE, clock=time.monotonic
        )

    async def serve(self) -> None:
        """Do what it is told until there is no more."""
        observer = self._replicas.observer
        assert observer.start is not None
        assert observer.run is not None
        observer.start()
        running = asyncio.ensure_future(observer.run())
        print(self._replicas.transport.port, flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            answer = await self._do(msgspec.json.decode(line, type=Told))
            print(msgspec.json.encode(answer).decode(), flush=True)
        running.cancel()

    async def _do(self, told: Told) -> dict[str, float]:
        began = time.monotonic()
        self._peers += [PeerAddress(HERE, port) for port in told.peers]
        self._know(told.endpoints, told.room, told.blocks)
        while told.warm and not self._replicas.warm:
            await asyncio.sleep(0.005)
        warm = time.monotonic() - began
        if told.rate:
            await self._send(told.rate, told.seconds)
        found = {
            "seconds": warm,
            "blocks": float(self._fleet.indexed_blocks),
            "cpu": time.process_time(),
        }
        return found | (self._metrics() if told.metrics else {})

    def _know(self, endpoints: int, room: int, blocks: int) -> None:
        now = time.monotonic()
        for number in range(endpoints):
            endpoint = Endpoint("default", f"pod-{number}", "10.0.0.1", 8000 + number)
            self._fleet.apply(EndpointUpserted(endpoint), now)
            load = Load(num_blocks=room + 1, block_size=_BLOCK, started_at=1.0)
            self._fleet.apply(LoadReported(endpoint.id, load), now)
            if blocks:
                held = [BlockHash(self._chance.getrandbits(64)) for _ in range(blocks)]
                copied = CacheCopied(endpoint.id, held, [_BLOCK] * blocks, closed=True)
                self._fleet.apply(copied, now)
        if endpoints:
            self._fleet.apply(Listed(), now)

    async def _send(self, rate: float, seconds: float) -> None:
        """Send requests that each begin at once and end as the next one comes."""
        pods = list(self._fleet.pods.values())
        end, due = time.monotonic() + seconds, time.monotonic()
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += self._chance.expovariate(rate)
            now = time.monotonic()
            name = RequestId(f"bench-{next(self._names)}")
            text = self._chance.randbytes(1024).hex().encode()
            request = InferenceRequest(
                id=name, api=Api.CHAT, target_model="m", prompts=(Prompt(text),), stream=True
            )
            quote = self._fleet.quote(request, now)
            pod = self._chance.choice(pods)
            self._fleet.apply(Admitted(quote, EndpointId(pod.endpoint.id)), now)
            self._fleet.apply(FirstToken(name), now)
            self._fleet.apply(Finished(name, Usage(quote.tokens, 20, 0)), now)

    def _metrics(self) -> dict[str, float]:
        observer = self._replicas.observer
        assert observer.collect is not None
        lines = "".join(each.lines() for each in observer.collect()).splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


if __name__ == "__main__":
    configure_logs("error", "json")
    uvloop.run(Station(int(sys.argv[1]), *sys.argv[2:]).serve())
