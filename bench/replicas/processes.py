"""Replicas as processes of their own over loopback: the lag of facts, and the start of one more."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import msgspec

from bench.child import Child, MeasurementFailed
from bench.replicas.station import Told

_LINE_BYTES = 1 << 20
_REPLICAS = 2
_RATE = 20.0
"""Requests a second of each: what two shared cores bear."""
_LAG_BUCKET = 'warmpick_replica_lag_seconds_bucket{le="'
_NAME = "bench.replicas.station"


async def tell(child: Child, told: Told) -> dict[str, float]:
    """Tell a replica something, and return its answer."""
    child.tell(msgspec.json.encode(told))
    return msgspec.json.decode(await child.answer(), type=dict[str, float])


@contextlib.asynccontextmanager
async def replicas(count: int, endpoints: int) -> AsyncIterator[tuple[list[Child], list[int]]]:
    """Start replicas that know each other, and wait until they are warm."""
    async with contextlib.AsyncExitStack() as stack:
        children, ports = list[Child](), list[int]()
        for number in range(count):
            child = await stack.enter_async_context(Child(_NAME, _LINE_BYTES, str(number + 1)))
            ports.append(int(await child.answer()))
            await tell(child, Told(peers=ports[:-1], endpoints=endpoints))
            for other in children:
                await tell(other, Told(peers=ports[-1:]))
            children.append(child)
        for child in children:
            await tell(child, Told(warm=True))
        yield children, ports


async def lag(seconds: float) -> tuple[float, float, float]:
    """Return the lag's 99th percentile in ms, facts that were sent, and messages missed."""
    async with replicas(_REPLICAS, 10) as (children, _):
        said = await asyncio.gather(
            *(tell(each, Told(rate=_RATE, seconds=seconds, metrics=True)) for each in children)
        )
        await asyncio.sleep(1.0)
        said = [await tell(each, Told(metrics=True)) for each in children]
    sent = sum(each["warmpick_replica_facts_sent_total"] for each in said)
    missed = sum(each["warmpick_replica_messages_missing"] for each in said)
    return max(map(_percentile, said)) * 1e3, sent, missed


def _percentile(metrics: Mapping[str, float], share: float = 0.99) -> float:
    """Return a percentile of the lag in seconds, interpolated within its bucket."""
    counts = {
        float(name[len(_LAG_BUCKET) : -2]): count
        for name, count in metrics.items()
        if name.startswith(_LAG_BUCKET)
    }
    wanted, before, below = share * max(counts.values()), 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= wanted:
            inside = (wanted - below) / max(1.0, count - below)
            return before + inside * (min(bound, 60.0) - before)
        before, below = bound, count
    raise MeasurementFailed("no lag was measured")


async def warm(endpoints: int, blocks: int) -> tuple[float, float]:
    """Return the seconds that one more replica takes to be warm, and how many blocks it has."""
    async with replicas(1, 0) as ((child,), (port,)):
        await tell(child, Told(endpoints=endpoints, room=blocks, blocks=blocks))
        await asyncio.sleep(1.5)  # a beat says that it may warm others
        async with Child(_NAME, _LINE_BYTES, "9") as fresh:
            own = int(await fresh.answer())
            await tell(child, Told(peers=[own]))
            wanted = Told(peers=[port], endpoints=endpoints, room=blocks, warm=True)
            said = await tell(fresh, wanted)
    return said["seconds"], said["blocks"]
