"""A spike past what simulated model servers can serve, through Envoy, with and without holding.

python -m bench.hold.spike [FILE]

Draws arrivals, what waits in the picker, and first tokens; the default is docs/overload.png.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import accumulate
from math import log
from pathlib import Path

import aiohttp
import msgspec
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from bench.chart import GOOD, OTHER, drawing, png
from bench.docs import DOCS
from bench.extproc.pickers import Product, endpoints_file
from bench.extproc.stack import TRANSPORT, before, envoy
from bench.machine import describe, uncompiled
from bench.progress import Progress
from epp.gateway.processes import spawn
from epp.replay.results.measures import mean, percentile
from epp.replay.results.style import in_seconds

SERVERS = 4
_FLAGS = ("--speed=0.25", "--num-gpu-blocks-override=2501")
"""Each a quarter as fast as an 8B model on an H100, with 40,000 tokens of cache."""
_PHASES = ((10.0, 2.0), (20.0, 10.0), (40.0, 1.0))
"""Seconds, and requests a second in them."""
_MEDIAN_TOKENS, _SPREAD, _MAX_TOKENS = 1200, 0.9, 12_000
_RESPONSE_TOKENS = 60
_WORD = "word"
_SAMPLE_SECONDS = 0.5
_READY_SECONDS = 60.0
_ANSWER_SECONDS = 300.0
_WAITING = "warmpick_flow_waiting_requests"
_BIN_SECONDS = 1.0


class Arrival(msgspec.Struct, frozen=True):
    """A request that is sent at `at` seconds, with a prompt of `words` words."""

    at: float
    words: int


class Answer(msgspec.Struct, frozen=True):
    """What a client got: its status, and seconds to the first token and to the last."""

    at: float
    status: int
    first: float
    last: float


class Run(msgspec.Struct, frozen=True):
    """All answers of a run, and how many requests waited in the picker at which time."""

    answers: Sequence[Answer]
    waiting: Sequence[tuple[float, float]]


def arrivals(seed: int = 0) -> list[Arrival]:
    """Draw the requests of all phases."""
    draw = random.Random(seed)
    ends = [0.0, *accumulate(seconds for seconds, _ in _PHASES)]
    found = []
    for began, (seconds, rate) in zip(ends, _PHASES, strict=False):
        at = began + draw.expovariate(rate)
        while at < began + seconds:
            words = min(_MAX_TOKENS, round(draw.lognormvariate(log(_MEDIAN_TOKENS), _SPREAD)))
            found.append(Arrival(at, words))
            at += draw.expovariate(rate)
    return found


async def play(hold: str, log_dir: Path) -> Run:
    """Send them all to a picker with this `--hold`."""
    async with _gateway(hold, log_dir) as (url, metrics_url), _client() as client:
        waiting: list[tuple[float, float]] = []
        began = time.monotonic()
        sampling = asyncio.create_task(_sample(client, metrics_url, waiting, began))
        answers = await asyncio.gather(
            *(_ask(client, url, number, each, began) for number, each in enumerate(arrivals()))
        )
        sampling.cancel()
    return Run(answers, waiting)


def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
    )


async def _ask(
    client: aiohttp.ClientSession, url: str, number: int, asked: Arrival, began: float
) -> Answer:
    await asyncio.sleep(max(0.0, began + asked.at - time.monotonic()))
    text = f"{number} " + f"{_WORD}{number % 10} " * asked.words
    body = {
        "model": "sim-model",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": _RESPONSE_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    sent = time.monotonic()
    async with client.post(f"{url}/v1/chat/completions", json=body) as response:
        await response.content.readany()
        first = time.monotonic() - sent
        await response.read()
    return Answer(sent - began, response.status, first, time.monotonic() - sent)


async def _sample(
    client: aiohttp.ClientSession, url: str, into: list[tuple[float, float]], began: float
) -> None:
    while True:
        async with client.get(url) as response:
            families = text_string_to_metric_families(await response.text())
        at = time.monotonic() - began
        samples = (each for family in families for each in family.samples)
        into.append((at, sum(each.value for each in samples if each.name == _WAITING)))
        await asyncio.sleep(_SAMPLE_SECONDS)


@contextlib.asynccontextmanager
async def _gateway(hold: str, log_dir: Path) -> AsyncIterator[tuple[str, str]]:
    """Start model servers, a picker and Envoy; give the URLs of clients and of metrics."""
    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for number in range(SERVERS):
            command = (sys.executable, "-m", "model_server.simulator", "--port=0", *_FLAGS)
            server = await spawn(f"server-{hold}-{number}", command, log_dir=log_dir)
            stack.push_async_callback(server.stop, 0)
            ports.append((await server.wait_ready_line(_READY_SECONDS))["port"])
        endpoints = endpoints_file(ports, log_dir / f"endpoints-{hold}.yaml")
        product = Product(endpoints, TRANSPORT, f"--hold={hold}")
        picker = await product.start(log_dir, f"epp-{hold}")
        stack.push_async_callback(picker.stop, 0)
        settings = replace(before(ports, product.grpc_port), stream_idle_timeout_s=_ANSWER_SECONDS)
        await stack.enter_async_context(envoy(hold, log_dir, settings))
        yield settings.url, product.metrics_url


def draw(runs: Mapping[str, Run]) -> bytes:
    """Draw a run with `--hold off` and one with `auto`, one above the other."""
    looks = {"off": ("sent at once (--hold off)", OTHER), "auto": ("held (default)", GOOD)}
    with drawing(7.6, 6.2) as figure:
        came, waiting, first = figure.subplots(3, 1, sharex=True, height_ratios=(1, 1, 2))
        counts = Counter(each.at // _BIN_SECONDS for each in runs["auto"].answers)
        came.bar(
            [(bin_ + 0.5) * _BIN_SECONDS for bin_ in counts],
            [count / _BIN_SECONDS for count in counts.values()],
            width=0.9 * _BIN_SECONDS,
            color=OTHER,
        )
        came.set(title="Arrivals, requests a second")
        waiting.plot(*zip(*runs["auto"].waiting, strict=True), color=GOOD, lw=1.8)
        waiting.set(title="Requests that wait in the picker", ylim=(0, None))
        for name, run in runs.items():
            label, colour = looks[name]
            times = [each.first for each in run.answers]
            told = f"{label}: mean {mean(times):.1f} s, median {percentile(times, 50):.1f} s"
            at = [each.at for each in run.answers]
            first.plot(at, times, "o", color=colour, ms=3.5, alpha=0.6, mew=0, label=told)
        first.set(title="First token, by arrival", yscale="log", xlabel="seconds")
        in_seconds(first.yaxis)
        first.legend(loc="upper right", frameon=True, framealpha=0.9, fontsize=8.5)
        return png(figure)


def told(name: str, run: Run) -> str:
    """Return a run's figures as a line."""
    first = [each.first for each in run.answers]
    statuses = Counter(each.status for each in run.answers)
    parts = [
        f"--hold {name}: {len(first)} requests, statuses {dict(statuses)}",
        f"first token mean {mean(first):.2f} s",
        *(f"p{percent} {percentile(first, percent):.2f}" for percent in (50, 90, 99)),
        f"end to end {mean(each.last for each in run.answers):.2f} s",
        f"most waited {max(count for _, count in run.waiting):.0f}",
    ]
    return ", ".join(parts)


async def _main(place: Path) -> None:
    machine = ", ".join(filter(None, (describe(), uncompiled())))
    progress, runs = Progress(), {}
    with tempfile.TemporaryDirectory(prefix="warmpick-spike-") as name:
        for hold in ("off", "auto"):
            progress.step(f"{len(arrivals())} requests, --hold {hold}")
            runs[hold] = await play(hold, Path(name))
            print(told(hold, runs[hold]))
    print(f"python -m bench.hold.spike on {machine}.")
    place.write_bytes(draw(runs))


def main(argv: Sequence[str] | None = None) -> int:
    """Play the spike and draw it; return 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.hold.spike", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=DOCS / "overload.png")
    place = parser.parse_args(argv).file
    if not place.absolute().parent.is_dir():
        parser.error(f"there is no folder for {place}")
    asyncio.run(_main(place))
    return 0


if __name__ == "__main__":
    sys.exit(main())
