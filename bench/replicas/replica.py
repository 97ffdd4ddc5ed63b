"""A replica with the product's fleet and exchange, which makes requests by itself: no gateway."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator

from epp.adapters.replicas.redis_server import redis_server
from epp.adapters.replicas.settings import PeerAddress, ReplicaSettings
from epp.app.replicas.exchange import Replicas
from epp.model.endpoint import Endpoint, EndpointId, Load
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Api, InferenceRequest, Prompt, RequestId, Usage
from epp.model.request_events import Admitted, Finished, FirstToken

BLOCK = 16
_SECRET = b"a secret of the benchmark, long enough"
_HERE = "127.0.0.1"
_GENERATED = 20


class Replica:
    """One replica on loopback. `server` is the address of the Redis in between, if there is one."""

    def __init__(self, number: int, server: str = "") -> None:
        self.chance = random.Random(number)
        self.fleet = Fleet(BlockHasher(_SECRET))
        self._names = itertools.count(number << 32)
        self._peers: list[PeerAddress] = []
        redis = redis_server(server) if server else None
        settings = ReplicaSettings(
            peers=self._peers, port=0, look_up=0.1, warm_limit=30.0, redis=redis
        )
        self.replicas = Replicas(
            self.fleet, settings, _SECRET, pool="bench", bind_address=_HERE, clock=time.monotonic
        )

    @property
    def port(self) -> int:
        """Where it listens for others, known once it runs; 0 if they have a server."""
        return 0 if self.replicas.mesh is None else self.replicas.mesh.port

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have it exchange with others."""
        observer = self.replicas.observer
        assert observer.start is not None
        assert observer.run is not None
        observer.start()
        task = asyncio.ensure_future(observer.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self.replicas.mesh is not None:
                self.replicas.mesh.close()

    def connect(self, *ports: int) -> None:
        """Connect to the replicas at these ports."""
        self._peers += [PeerAddress(_HERE, port) for port in ports]

    def know(self, endpoints: int, room: int) -> list[Endpoint]:
        """Know so many endpoints from here on, each with so many blocks; return them."""
        known, now = [], time.monotonic()
        for number in range(endpoints):
            known.append(Endpoint("default", f"pod-{number}", "10.0.0.1", 8000 + number))
            load = Load(num_blocks=room + 1, block_size=BLOCK, started_at=1.0)
            self.fleet.apply(EndpointUpserted(known[-1]), now)
            self.fleet.apply(LoadReported(known[-1].id, load), now)
        return known

    def serve(self, characters: int) -> None:
        """Send a request to an endpoint by chance, and have it end at once."""
        now, name = time.monotonic(), RequestId(f"bench-{next(self._names)}")
        text = self.chance.randbytes(characters // 2).hex().encode()
        request = InferenceRequest(
            id=name, api=Api.CHAT, target_model="m", prompts=(Prompt(text),), stream=True
        )
        quote = self.fleet.quote(request, now)
        pod = self.chance.choice(list(self.fleet.pods.values()))
        self.fleet.apply(Admitted(quote, EndpointId(pod.endpoint.id)), now)
        self.fleet.apply(FirstToken(name), now)
        self.fleet.apply(Finished(name, Usage(quote.tokens, _GENERATED, 0)), now)
