"""Time and memory of a whole run of `epp replay`, each in a process of its own."""

import asyncio
import resource
import time
from pathlib import Path

from bench.accuracy import mooncake
from bench.figures import Budget, Figure
from epp.replay.engines.contract import Limits
from epp.replay.plan import PodPlan, RunPlan, Traffic
from epp.replay.policies import NAMED
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import processes, read_traffic

REQUESTS = 12_000
PODS = 8
WORKLOAD = "interactive-chat"
"""What is replayed without a trace."""
_POD = PodPlan(limits=Limits(num_gpu_blocks=100_001))
_KILO = 1024


async def figures(place: Path | None, rounds: int) -> list[Figure]:
    """Measure runs of the default policy. Raises `ConfigError` where there is no such trace."""
    source = WORKLOAD
    if place is not None:
        source = str(place / mooncake.NAME if place.is_dir() else place)
    traffic = Traffic(source=source, requests=REQUESTS)
    loop = asyncio.get_running_loop()
    measured = []
    for _ in range(rounds):
        with processes(1) as pool:
            measured.append(await loop.run_in_executor(pool, _run, traffic))
    seconds, memory = zip(*measured, strict=True)
    return [
        Figure(
            key="seconds_per_12k_requests",
            says=f"12,000 requests on {PODS} pods of 1.6M tokens, least-ttft",
            unit="s",
            runs=seconds,
            budget=Budget(most=20.0),
        ),
        Figure(
            key="rss_mb",
            says="most memory of such a run",
            unit="MB",
            runs=memory,
            budget=Budget(most=1000.0),
        ),
    ]


def _run(traffic: Traffic) -> tuple[float, float]:
    """Return the seconds that a run takes, its reading left out, and its memory in MB."""
    trace = read_traffic(traffic)
    plan = RunPlan(policy=NAMED["least-ttft"], pods=(_POD,) * PODS)
    began = time.perf_counter()
    count = len(Simulation(trace, plan).run().outcomes)
    seconds = (time.perf_counter() - began) * REQUESTS / count
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILO / 1e6
