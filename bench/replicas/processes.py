"""Replicas as processes of their own over loopback: the lag of facts, and the start of one more."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import NamedTuple

import msgspec

from bench.child import Child, MeasurementFailed
from bench.replicas.station import Order
from epp.gateway.processes import free_port

_LINE_BYTES = 1 << 20
_REPLICAS = 2
_RATE = 20.0
"""Requests a second of each: what two shared cores bear."""
_LAG_BUCKET = 'warmpick_replica_lag_seconds_bucket{le="'
_NAME = "bench.replicas.station"


async def tell(child: Child, order: Order) -> dict[str, float]:
    """Tell a replica something, and return its answer."""
    child.tell(msgspec.json.encode(order))
    return msgspec.json.decode(await child.answer(), type=dict[str, float])


@contextlib.asynccontextmanager
async def replicas(
    count: int, endpoints: int, server: str = ""
) -> AsyncIterator[tuple[list[Child], list[int]]]:
    """Start replicas that know each other, and wait until they are warm."""
    more = (server,) if server else ()
    async with contextlib.AsyncExitStack() as stack:
        children, ports = list[Child](), list[int]()
        for number in range(count):
            child = await stack.enter_async_context(
                Child(_NAME, _LINE_BYTES, str(number + 1), *more)
            )
            ports.append(int(await child.answer()))
            await tell(child, Order(peers=[] if server else ports[:-1], endpoints=endpoints))
            for other in () if server else children:
                await tell(other, Order(peers=ports[-1:]))
            children.append(child)
        for child in children:
            await tell(child, Order(warm=True))
        yield children, ports


class Lag(NamedTuple):
    """What two replicas told each other, and how late."""

    median: float
    """Milliseconds."""
    p99: float
    """Milliseconds."""
    cpu: float
    """Microseconds of one process for each request of all, with what making it costs."""
    sent: float
    """Facts that were sent."""
    missed: float
    """Messages that did not arrive."""


async def lag(seconds: float, server: str = "") -> Lag:
    """Measure it, straight or by the server at an address."""
    async with replicas(_REPLICAS, 10, server) as (children, _):
        before = [await tell(each, Order(metrics=True)) for each in children]
        await asyncio.gather(*(tell(each, Order(rate=_RATE, seconds=seconds)) for each in children))
        await asyncio.sleep(1.0)
        said = [await tell(each, Order(metrics=True)) for each in children]
    cpu = sum(each["cpu"] for each in said) - sum(each["cpu"] for each in before)
    return Lag(
        median=max(_percentile(each, 0.5) for each in said) * 1e3,
        p99=max(map(_percentile, said)) * 1e3,
        cpu=cpu / _REPLICAS / (_REPLICAS * _RATE * seconds) * 1e6,
        sent=sum(each["warmpick_replica_facts_sent_total"] for each in said),
        missed=sum(each["warmpick_replica_messages_missing"] for each in said),
    )


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """Give the address of a Redis of one's own; empty where there is no redis-server."""
    program = shutil.which("redis-server")
    if program is None:
        yield ""
        return
    port = free_port()
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        try:
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.kill()


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
        await tell(child, Order(endpoints=endpoints, room=blocks, blocks=blocks))
        await asyncio.sleep(1.5)  # a beat says that it may warm others
        async with Child(_NAME, _LINE_BYTES, "9") as fresh:
            own = int(await fresh.answer())
            await tell(child, Order(peers=[own]))
            wanted = Order(peers=[port], endpoints=endpoints, room=blocks, warm=True)
            said = await tell(fresh, wanted)
    return said["seconds"], said["blocks"]
