"""CPU per streamed answer behind an Envoy that shows response bodies as `STREAMED`.

The picker watches all answers to their end, the first chunk of each, or those whose end it needs.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.accounting import Meter
from bench.extproc.load import Order
from bench.extproc.pickers import Product, endpoints_file
from bench.extproc.samples import Effort, Samples
from bench.extproc.stack import TRANSPORT, Stack, before, envoy, rotated, start_backends
from bench.extproc.workload import Shape

OBSERVED = ("all", "first", "auto")
CHUNKS = 100
_CONNECTIONS = 128
_RATE = 100.0
_INTERVAL_MS = 10.0
_SIZE = 2 << 10
_WARM_UP_S = 10.0
"""A thousand answers, in which `auto` learns what there is to learn."""


class Watched(msgspec.Struct, frozen=True):
    """An Envoy's port, and the meter of its picker."""

    port: int
    meter: Meter


async def per_stream(
    stack: Stack, pods: int, effort: Effort, log_dir: Path, samples: Samples
) -> None:
    """CPU per answer of 100 chunks, in turn; a round to warm up is left out."""
    async with watching(pods, log_dir, stack.meter[TRANSPORT].idle_cores) as watched:
        for turn in range(-1, effort.slow_rounds):
            costs = {}
            for name in rotated(OBSERVED, turn):
                each = watched[name]
                order = Order(
                    port=each.port,
                    shape=Shape(size=_SIZE, chunks=CHUNKS, interval_ms=_INTERVAL_MS),
                    seconds=effort.stream_s if turn >= 0 else _WARM_UP_S,
                    connections=_CONNECTIONS,
                    rate=_RATE,
                )
                each.meter.start()
                result = await stack.load.run(order)
                costs[name] = each.meter.stop() / result.requests * 1e6
            if turn >= 0:
                for name, cost in costs.items():
                    samples.add(f"cpu_us_stream_{name}", cost)
                samples.add("stream_auto_of_first", costs["auto"] / costs["first"])


@asynccontextmanager
async def watching(
    pods: int, log_dir: Path, idle_cores: float
) -> AsyncIterator[Mapping[str, Watched]]:
    """Start model servers, and a picker with its Envoy for each way to observe.

    `idle_cores` are taken off what is measured of a picker.
    """
    async with AsyncExitStack() as exits:
        backends, ports = await start_backends(pods, log_dir)
        exits.push_async_callback(backends.stop)
        endpoints = endpoints_file(ports, log_dir / "streams.yaml")
        watched = {}
        for name in OBSERVED:
            product = Product(endpoints, TRANSPORT, f"--observe-responses={name}")
            picker = await product.start(log_dir, f"epp-{name}")
            exits.push_async_callback(picker.stop)
            settings = replace(before(ports, product.grpc_port), response_body_mode="STREAMED")
            port = await exits.enter_async_context(envoy(name, log_dir, settings))
            watched[name] = Watched(port, Meter(pid=picker.pid, idle_cores=idle_cores))
        yield watched
