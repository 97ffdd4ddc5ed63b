"""What a decision costs without sockets, by the number of endpoints, and a whole exchange by size.

python -m bench pick
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from bench.extproc.stack import rotated
from bench.figures import Budget, Figure, Report
from bench.options import Options
from bench.progress import Progress
from bench.request_path import Messages, RequestPath, bodies
from epp.adapters.telemetry.logs import configure_logs

ENDPOINTS = (10, 100, 1000)
SIZES = {"2k": 2 << 10, "20k": 20 << 10, "220k": 220 << 10, "400k": 400 << 10}
OTHERS = {"4m": 4 << 20, "16m": 16 << 20}
"""Bytes that others read between two exchanges of 2 KB."""
_BUDGETS = {
    "10": Budget(most=20),
    "100": Budget(most=40),
    "1000": Budget(most=280),
    "400k": Budget(most=1500),
}
_SAYS = {
    "us": "a pick among %s endpoints",
    "exchange_us": "an exchange, %s body",
    "exchange_us_2k_after": "an exchange, 2k body, %s of other memory read before it",
}
_PICKS = 400
_MEGABYTES = 24 << 20
NOTES = (
    "A pick of a 2 KB chat, once parsed: hash, match, estimate, compare, enter in the books.",
    "An exchange is all that ext_proc asks of one request among ten endpoints, bytes to bytes.",
    "CPU time of one thread that does nothing else: caches are warmer than beside a proxy.",
    "4m, 16m: MiB of other memory, which is no longer in the processor's caches after that.",
)


async def measure(progress: Progress, options: Options) -> Report:
    """Measure picks and exchanges, in rotating order."""
    configure_logs("info", "json")
    rounds = 5 if options.quick else 15
    runs: dict[str, list[float]] = {}
    progress.step("endpoints that are asked, and bodies of every size")
    jobs = dict([*_picks(), *_exchanges()])
    names = list(jobs)
    for turn in range(-1, rounds):
        for name in rotated(names, turn):
            cost = jobs[name]()
            if turn >= 0:
                runs.setdefault(name, []).append(cost)
    return Report(
        name="pick", figures=tuple(_figure(name, runs[name]) for name in names), notes=NOTES
    )


def _figure(name: str, runs: Iterable[float]) -> Figure:
    kind, _, what = name.rpartition("_")
    budget = _BUDGETS.get(what)
    return Figure(key=name, says=_SAYS[kind] % what, unit="µs", runs=tuple(runs), budget=budget)


def _picks() -> Iterator[tuple[str, Callable[[], float]]]:
    for endpoints in ENDPOINTS:
        yield f"us_{endpoints}", partial(_pick_us, RequestPath(endpoints), bodies(SIZES["2k"]))


def _exchanges() -> Iterator[tuple[str, Callable[[], float]]]:
    for name, size in SIZES.items():
        count = min(_PICKS, _MEGABYTES // size)
        exchange = partial(_exchange_us, RequestPath(ENDPOINTS[0]), bodies(size), count)
        yield f"exchange_us_{name}", exchange
    for name, size in OTHERS.items():
        crowded = partial(
            _crowded_us, RequestPath(ENDPOINTS[0]), bodies(SIZES["2k"]), bytearray(size)
        )
        yield f"exchange_us_2k_after_{name}", crowded


def _pick_us(path: RequestPath, source: Iterator[bytes]) -> float:
    asked = [path.request(body) for body in islice(source, _PICKS)]
    started = time.process_time()
    for request in asked:
        path.pick(request)
    spent = time.process_time() - started
    for request in asked:
        path.forget(request)
    return spent / len(asked) * 1e6


def _exchange_us(path: RequestPath, source: Iterator[bytes], count: int) -> float:
    asked = [Messages.about(body) for body in islice(source, count)]
    started = time.process_time()
    for messages in asked:
        path.exchange(messages)
    return (time.process_time() - started) / count * 1e6


def _crowded_us(path: RequestPath, source: Iterator[bytes], others: bytearray) -> float:
    spent = 0.0
    for messages in [Messages.about(body) for body in islice(source, _PICKS)]:
        others.count(1)  # reads all of it
        started = time.process_time()
        path.exchange(messages)
        spent += time.process_time() - started
    return spent / _PICKS * 1e6
