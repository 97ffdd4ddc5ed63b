"""Two replicas whose network is cut, and mended: of how many endpoints they believe another thing.

Fleets and exchange are the product's, over real sockets in one process; the digests go round when
they are told to, not every 15 seconds.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

from epp.adapters.replicas.settings import PeerAddress, ReplicaSettings
from epp.app.replicas.copies import contents_reply
from epp.app.replicas.diff import CacheDiff, compare
from epp.app.replicas.exchange import Replicas
from epp.model.endpoint import Endpoint, EndpointId, Load
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.fleet import Fleet
from epp.model.pods.pod import Pod
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Api, InferenceRequest, Prompt, RequestId, Usage
from epp.model.request_events import Admitted, Finished

_SECRET = b"a secret of the benchmark, long enough"
_HERE = "127.0.0.1"
_PODS = 10
_BLOCKS = 2000
_TEXT = 4096
_ROUNDS = 2
"""How often the digests go round after the network is mended: 30 seconds of the product's time."""
_PATIENCE = 60.0


class Half:
    """One replica, whose network can be cut."""

    def __init__(self, number: int) -> None:
        self._chance = random.Random(number)
        self._number, self._sent = number, 0
        self.fleet = Fleet(BlockHasher(_SECRET))
        for pod in range(_PODS):
            endpoint = Endpoint("default", f"pod-{pod}", "10.0.0.1", 8000 + pod)
            self.fleet.apply(EndpointUpserted(endpoint), time.monotonic())
            load = Load(num_blocks=_BLOCKS + 1, block_size=16, started_at=1.0)
            self.fleet.apply(LoadReported(endpoint.id, load), time.monotonic())
        self.peers: list[PeerAddress] = []
        settings = ReplicaSettings(peers=self.peers, port=0, look_up=0.05)
        self.replicas = Replicas(
            self.fleet, settings, _SECRET, pool="bench", bind_address=_HERE, clock=time.monotonic
        )

    def cut(self, *, off: bool) -> None:
        """Have nothing be sent, or again."""
        mesh = self.replicas.transport
        if off:
            mesh.send = _send_nothing  # type: ignore[method-assign]
        else:
            del mesh.send

    def serve(self, requests: int) -> None:
        """Send requests to endpoints by chance, and have each end."""
        for _ in range(requests):
            self._sent += 1
            name, now = RequestId(f"{self._number}-{self._sent}"), time.monotonic()
            text = self._chance.randbytes(_TEXT // 2).hex().encode()
            request = InferenceRequest(
                id=name, api=Api.CHAT, target_model="m", prompts=(Prompt(text),)
            )
            quote = self.fleet.quote(request, now)
            endpoint = EndpointId(f"default/pod-{self._chance.randrange(_PODS)}")
            self.fleet.apply(Admitted(quote, endpoint), now)
            self.fleet.apply(Finished(name, Usage(quote.tokens, 1, 0)), now)


async def measure(requests: int) -> tuple[int, int, float]:
    """Return of how many endpoints two replicas differ while they are apart, and mended.

    Also the seconds that mending took. Each sends so many requests meanwhile.
    """
    one, other = halves = Half(1), Half(2)
    async with contextlib.AsyncExitStack() as stack:
        for half in halves:
            await stack.enter_async_context(_running(half))
        one.peers.append(PeerAddress(_HERE, other.replicas.transport.port))
        other.peers.append(PeerAddress(_HERE, one.replicas.transport.port))
        await _until(lambda: all(_settled(each) for each in halves))
        for half in halves:
            half.cut(off=True)
            half.serve(requests)
        await asyncio.sleep(0.1)
        apart = _apart(one, other)
        for half in halves:
            half.cut(off=False)
            half.serve(1)
        await asyncio.sleep(0.1)
        began = time.monotonic()
        for _ in range(_ROUNDS):
            before = sum(map(_compared, halves))
            for half in halves:
                await half.replicas.copies.tell_own()
            await _until(partial(_went_round, halves, before + _PODS))
            await _until(lambda: not any(half.replicas.copies.busy for half in halves))
            await asyncio.sleep(0.2)
        return apart, _apart(one, other), time.monotonic() - began


def _send_nothing(message: bytes) -> int:
    return len(message[:1])


def _went_round(halves: tuple[Half, Half], count: int) -> bool:
    return sum(map(_compared, halves)) >= count


def _apart(one: Half, other: Half) -> int:
    return sum(each.differs for each in map(_diff, one.fleet.pods.values(), [other] * _PODS))


def _diff(pod: Pod, other: Half) -> CacheDiff:
    there = other.fleet.pods[pod.endpoint.id]
    return compare(pod.endpoint.id, contents_reply(pod, 0, 1), contents_reply(there, 0, 1))


def _settled(half: Half) -> bool:
    peers = list(half.replicas.reader.peers.values())
    return half.replicas.warm and bool(peers) and all(each.owns for each in peers)


def _compared(half: Half) -> int:
    return half.replicas.copies.compared.total()


@contextlib.asynccontextmanager
async def _running(half: Half) -> AsyncIterator[None]:
    observer = half.replicas.observer
    assert observer.start is not None
    assert observer.run is not None
    observer.start()
    task = asyncio.ensure_future(observer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        half.replicas.transport.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)
