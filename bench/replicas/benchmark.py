"""What several replicas decide together, what it costs, and how they come together again.

python -m bench replicas [--quick]
"""

import asyncio
import tempfile
from pathlib import Path

from bench.figures import Budget, Figure, Report, single
from bench.hold.benchmark import QUICK_SEEDS, SEEDS
from bench.options import Options
from bench.progress import Progress
from bench.replicas import costs, healing, killed, processes, simulated
from epp.replay import sweep

_COUNTS = (2, 4, 8)
_REQUESTS, _QUICK_REQUESTS = 12_000, 2_000
_ROUNDS, _QUICK_ROUNDS = 5, 3
_LAG_SECONDS, _QUICK_LAG_SECONDS = 30.0, 10.0
_ENDPOINTS, _BLOCKS = 100, 35_000
_BUSY, _QUICK_BUSY = 20_000, 4_000
_APART, _QUICK_APART = 3_000, 600
_STRUCK_SECONDS, _QUICK_STRUCK_SECONDS = 70.0, 30.0
_NOTES = (
    (
        "Ratios to one replica and shares are played in virtual time: engines and network are"
        f" simulated, facts are as they are written, the lag is {simulated.LAG_SECONDS * 1e3:g} ms."
    ),
    (
        "The lag and the warm start are those of processes of their own over loopback, encrypted."
        " They make their requests by themselves: no gateway, no pods."
    ),
    "Costs are CPU of the event loop's thread; libzmq encrypts in a thread of its own.",
    (
        f"Killed and paused: {killed.REPLICAS} replicas behind one Envoy, conversations of `epp"
        f" demo`, one replica every {killed.EVERY_S:g} s; a pause takes {killed.PAUSE_S:g} s. Envoy"
        " buffers requests, streams responses, checks the pickers' health and pings them each"
        " second, and asks another one if one does not answer."
    ),
)


async def measure(progress: Progress, options: Options) -> Report:
    """Measure all of it."""
    quick = options.quick
    figures = [*_costs(progress, _QUICK_ROUNDS if quick else _ROUNDS)]
    figures += await _lags(progress, _QUICK_LAG_SECONDS if quick else _LAG_SECONDS)
    progress.step(f"one more replica, {_ENDPOINTS} endpoints of {_BLOCKS:,} blocks")
    seconds, blocks = await processes.warm(_ENDPOINTS, _BLOCKS)
    figures += [
        single("warm_s", "until it knows them", "s", seconds, Budget(most=2.0)),
        single(
            "warm_blocks",
            "blocks that it knows then",
            "",
            blocks,
            Budget(least=_ENDPOINTS * _BLOCKS),
        ),
    ]
    progress.step("two replicas apart, and together again")
    apart, left, took = await healing.measure(_QUICK_APART if quick else _APART)
    figures += [
        single("diverged_apart", "endpoints that differ while they are apart", "", apart),
        single("diverged_after_heal", "after two rounds of digests", "", left, Budget(most=0)),
        single("heal_s", "that two rounds of digests took", "s", took),
    ]
    seconds = _QUICK_STRUCK_SECONDS if quick else _STRUCK_SECONDS
    figures += await _struck(progress, seconds)
    figures += await _played(progress, quick=quick)
    return Report(name="replicas", figures=tuple(figures), notes=_NOTES)


async def _lags(progress: Progress, seconds: float) -> list[Figure]:
    figures = []
    with processes.redis() as server:
        for key, by, address in (("", "straight", ""), ("redis_", "by Redis", server)):
            if key and not address:
                continue
            progress.step(f"the lag between two processes, {by}")
            lag = await processes.lag(seconds, address)
            figures += [
                single(f"{key}lag_ms_p50", f"from a fact to its peer, {by}", "ms", lag.median),
                single(f"{key}lag_ms_p99", "p99", "ms", lag.p99, Budget(most=10.0)),
                single(f"{key}cpu_us", "CPU of a replica for each request", "µs", lag.cpu),
                single(f"{key}facts", "facts that were told meanwhile", "", lag.sent),
                single(
                    f"{key}messages_missing",
                    "messages that did not arrive",
                    "",
                    lag.missed,
                    Budget(most=0),
                ),
            ]
    return figures


async def _struck(progress: Progress, seconds: float) -> list[Figure]:
    found: dict[str, killed.Outcome] = {}
    for name, strike in killed.STRIKES.items():
        progress.step(f"{killed.REPLICAS} replicas behind Envoy, {name}")
        with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as folder:
            found[name] = await killed.play(strike, seconds, Path(folder))
    calm, figures = found.pop("calm"), []
    for name, each in found.items():
        hit = each.cached / calm.cached
        figures += [
            single(f"{name}_times", f"replicas {name}", "", each.struck),
            single(f"{name}_requests", "requests meanwhile", "", each.requests),
            single(f"{name}_failed", "of them failed", "", each.failed, Budget(most=0)),
            single(
                f"{name}_hit_ratio", "cached, to an undisturbed run", "", hit, Budget(least=0.98)
            ),
            single(f"{name}_ttft_ratio", "mean TTFT", "", each.ttft_mean / calm.ttft_mean),
        ]
    return figures


def _costs(progress: Progress, rounds: int) -> list[Figure]:
    figures = []
    most = {"2k": (10.0, 15.0), "220k": (None, 40.0)}
    for size in costs.SIZES:
        progress.step(f"what a request of {size} costs to tell and to take in")
        with costs.connected() as send:
            found = [costs.measure(size, send) for _ in range(rounds)]
        told, heard, carried = zip(*found, strict=True)
        publish, apply = most[size]
        figures += [
            Figure(
                key=f"publish_us_{size}",
                says=f"CPU to tell of a request of {size}",
                unit="µs",
                runs=told,
                budget=None if publish is None else Budget(most=publish),
            ),
            Figure(
                key=f"apply_us_{size}",
                says="CPU to take it in, with what the fleet does",
                unit="µs",
                runs=heard,
                budget=Budget(most=apply),
            ),
            Figure(key=f"bytes_{size}", says="told, a new prompt", unit="B", runs=carried),
        ]
    return figures


async def _played(progress: Progress, *, quick: bool) -> list[Figure]:
    requests = _QUICK_REQUESTS if quick else _REQUESTS
    cases = [
        simulated.Case(replicas=count, told=told, requests=requests)
        for count, told in ((1, True), *((count, True) for count in _COUNTS), (4, False))
    ]
    progress.step(f"{requests:,} requests at 1, 2, 4 and 8 replicas, and at 4 on their own")
    loop = asyncio.get_running_loop()
    with sweep.processes(2) as pool:
        played = [loop.run_in_executor(pool, simulated.play, case) for case in cases]
        busiest = [
            loop.run_in_executor(pool, simulated.busiest, count, _QUICK_BUSY if quick else _BUSY)
            for count in (1, 4)
        ]
        one, *several, alone = await asyncio.gather(*played)
        (share_of_one, ttft_of_one), (share, ttft_of_four) = await asyncio.gather(*busiest)
    figures = []
    for count, found in zip(_COUNTS, several, strict=True):
        hit, ttft = found.hit / one.hit, found.ttft / one.ttft
        says = f"{count} replicas beside one: cached tokens"
        figures += [
            single(f"hit_ratio_{count}", says, "", hit, Budget(least=0.99)),
            single(f"ttft_ratio_{count}", "mean time to first token", "", ttft, Budget(most=1.03)),
        ]
    progress.step("four replicas past what pods serve, beside one")
    return [
        *figures,
        *await _held(QUICK_SEEDS if quick else SEEDS),
        single("hit_ratio_4_alone", "4 on their own", "", alone.hit / one.hit),
        single("ttft_ratio_4_alone", "4 on their own", "", alone.ttft / one.ttft),
        single(
            "share_worst_50ms", "of 10 endpoints, 4 replicas, 1,000/s", "", share, Budget(most=1.2)
        ),
        single("share_worst_50ms_one", "the same, one replica", "", share_of_one),
        single(
            "ttft_ratio_busy",
            "mean time to first token, the four beside one",
            "",
            ttft_of_four / ttft_of_one,
            Budget(most=1.03),
        ),
    ]


async def _held(seeds: int) -> list[Figure]:
    loop = asyncio.get_running_loop()
    says = {
        simulated.LOADED: "at 120 %, four replicas beside one: mean time to first token",
        simulated.FLOODED: "the same of a client beside a flood",
    }
    figures = []
    with sweep.processes(2) as pool:
        for name, said in says.items():
            runs = [
                loop.run_in_executor(pool, simulated.held_up, name, replicas, seed)
                for seed in range(seeds)
                for replicas in (4, 1)
            ]
            found = await asyncio.gather(*runs)
            ratios = tuple(four / one for four, one in zip(found[::2], found[1::2], strict=True))
            figures.append(Figure(key=f"{name}_ttft_ratio_4", says=said, unit="", runs=ratios))
    return figures
