"""Two replicas whose network is cut, and mended: of how many endpoints they believe another thing.

Fleets and exchange are the product's, over real sockets in one process; the digests go round when
they are told to, not every 15 seconds.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from bench.replicas.replica import Replica
from epp.app.replicas.copies import contents_reply
from epp.app.replicas.diff import CacheDiff, compare
from epp.model.pods.pod import Pod

_PODS = 10
_BLOCKS = 2000
_TEXT = 4096
_ROUNDS = 2
"""How often the digests go round after the network is mended: 30 seconds of the product's time."""
_PATIENCE = 60.0


def _cut(one: Replica, *, off: bool) -> None:
    """Stop what a replica sends (`off`), or let it send again."""
    mesh = one.replicas.mesh
    assert mesh is not None
    if off:
        mesh.send = _send_nothing  # type: ignore[method-assign]
    else:
        del mesh.send


async def measure(requests: int) -> tuple[int, int, float]:
    """Return on how many endpoints two replicas differ while apart, and once mended.

    The third number is the seconds that mending took. Each serves `requests` while apart.
    """
    one, other = halves = Replica(1), Replica(2)
    for half in halves:
        half.know(_PODS, _BLOCKS)
    async with one.running(), other.running():
        one.connect(other.port)
        other.connect(one.port)
        await _until(lambda: all(_settled(each) for each in halves))
        for half in halves:
            _cut(half, off=True)
            for _ in range(requests):
                half.serve(_TEXT)
        await asyncio.sleep(0.1)
        apart = _apart(one, other)
        for half in halves:
            _cut(half, off=False)
            half.serve(_TEXT)
        await asyncio.sleep(0.1)
        began = time.monotonic()
        for _ in range(_ROUNDS):
            before = sum(map(_compared, halves))
            for half in halves:
                await half.replicas.copies.send_own_digests()
            await _until(partial(_went_round, halves, before + _PODS))
            await _until(lambda: not any(half.replicas.copies.busy for half in halves))
            await asyncio.sleep(0.2)
        return apart, _apart(one, other), time.monotonic() - began


def _send_nothing(message: bytes) -> int:
    return len(message[:1])


def _went_round(halves: tuple[Replica, Replica], count: int) -> bool:
    return sum(map(_compared, halves)) >= count


def _apart(one: Replica, other: Replica) -> int:
    return sum(each.differs for each in map(_diff, one.fleet.pods.values(), [other] * _PODS))


def _diff(pod: Pod, other: Replica) -> CacheDiff:
    there = other.fleet.pods[pod.endpoint.id]
    return compare(pod.endpoint.id, contents_reply(pod, 0, 1), contents_reply(there, 0, 1))


def _settled(half: Replica) -> bool:
    peers = list(half.replicas.reader.peers.values())
    return half.replicas.warm and bool(peers) and all(each.owns for each in peers)


def _compared(half: Replica) -> int:
    return half.replicas.copies.compared.total()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)
