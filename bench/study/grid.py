"""What is studied: which traffic meets which fleet, how much of it, under which policies."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import ceil, sqrt
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.accuracy import lmcache, mooncake
from epp.config.file import POLICIES
from epp.replay.engines.contract import Limits
from epp.replay.engines.cost import StepCost
from epp.replay.plan import DRAIN_SECONDS, PodPlan, Policy, RunPlan, Traffic
from epp.replay.policies import NAMED
from epp.replay.sweep import Task, read_traffic
from epp.replay.traffic.calls import InfiniteCache, tokens_in

BASELINE = "llm-d-router"
NAMES = (BASELINE, "llm-d-router-guide", *POLICIES)
UNEQUAL = (1.0, 0.4)
"""The speeds of pods in turn: every second one is 2.5 times slower."""
_BATCH = 32
"""Sequences that share a step of decoding, where what a fleet can do is estimated."""
_REUSE_BLOCK = 128
"""Tokens of the blocks that such an estimate takes as shared."""
_AGENTS_SPEED = 0.25
_AGENTS_SECONDS = 240.0
_LONG_DRAIN = 7200.0
"""Of workloads whose requests take minutes: seconds in which all of them end."""
_EACH_SEED = 480.0
"""Seconds by which the part of a trace that one seed plays begins after another's."""


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of one run; nothing is sent after `seconds`."""

    traffic: Traffic
    seconds: float


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A workload, played on pods of `kv_tokens` and `speed`.

    Its figures begin after `warm_up` seconds, when about as many conversations end as begin; they
    are of `requests` for the square root of the number of pods. After the last one has come, others
    have `drain_seconds`. `traffic` is a part of it that
    shows what a request costs. `offered` gives it, a rate and seconds, its traffic for a run.
    If `rate` is set, that many requests a second come for each pod of speed 1, at any load.
    """

    name: str
    traffic: Traffic
    offered: "Callable[[Subject, float, float, int], Offered]"
    kv_tokens: int = 1_600_000
    speed: float = 1.0
    requests: int = 400
    warm_up: float = 60.0
    drain_seconds: float = DRAIN_SECONDS
    rate: float | None = None

    def seconds(self, rate: float, pods: int) -> float:
        """Return how long requests come at a rate."""
        return self.warm_up + self.requests * sqrt(pods) / rate


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """All that is varied. `loads` are shares of what a fleet can do by `busy_seconds`."""

    pods: Sequence[int] = (4, 12, 32)
    loads: Sequence[float] = (0.5, 0.3, 0.7)
    speeds: Sequence[Sequence[float]] = ((1.0,), UNEQUAL)
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    policies: Sequence[str] = NAMES


QUICK = Grid(pods=(4,), loads=(0.5,), seeds=(0, 1, 2))


def superposed(subject: Subject, rate: float, seconds: float, seed: int) -> Offered:
    """Offer copies of a part of a trace, each seed another one, in the trace's own time."""
    trace = read_traffic(subject.traffic)
    first = 600.0 + seed * _EACH_SEED
    traffic = replace(
        subject.traffic,
        seed=seed,
        minutes=(first / 60, (first + seconds) / 60),
        copies=round(rate * trace.calls[-1].at / len(trace.calls), 3),
    )
    return Offered(traffic=traffic, seconds=seconds)


def drawn(subject: Subject, rate: float, seconds: float, seed: int) -> Offered:
    """Offer as many conversations of a workload as begin within the time."""
    name, _, parameters = subject.traffic.source.partition(":")
    each = len(read_traffic(subject.traffic).calls) / _conversations(subject.traffic)
    sessions = ceil(1.1 * rate * seconds / each) + 10
    kept = [part for part in parameters.split(",") if not part.startswith("sessions")]
    source = f"{name}:{','.join([f'sessions={sessions}', f'rate={rate:.4g}', *kept])}"
    return Offered(traffic=Traffic(source=source, seed=seed), seconds=seconds)


def users(subject: Subject, rate: float, _seconds: float, seed: int) -> Offered:
    """Offer enough users of a closed loop for requests to come at the rate if none waits."""
    calls, cost = read_traffic(subject.traffic).calls, StepCost()
    generated = sum(tokens_in(call.response) for call in calls) / len(calls)
    think = sum(call.think for call in calls) / len(calls)
    users = ceil(rate * (think + generated * cost.step_ms * 1e-3 / subject.speed))
    copies = ceil(2 * users / _conversations(subject.traffic))
    traffic = replace(subject.traffic, seed=seed, copies=copies, users=users)
    return Offered(traffic=traffic, seconds=_AGENTS_SECONDS)


def subjects(traces: Path) -> Sequence[Subject]:
    """Return both public traces, which lie in a folder, and four workloads of the catalog."""
    return (
        Subject(
            name="conversation",
            traffic=Traffic(source=str(traces / mooncake.NAME)),
            offered=superposed,
        ),
        Subject(
            name="agents",
            traffic=Traffic(source=str(traces / lmcache.NAME)),
            offered=users,
            kv_tokens=200_000,
            speed=_AGENTS_SPEED,
        ),
        Subject(
            name="chat",
            traffic=Traffic(source="interactive-chat:sessions=1000"),
            offered=drawn,
            warm_up=150.0,
        ),
        Subject(
            name="code",
            traffic=Traffic(source="code-generation:sessions=400,longest=120000"),
            offered=drawn,
            requests=150,
            warm_up=450.0,
            drain_seconds=_LONG_DRAIN,
        ),
        Subject(
            name="research",
            traffic=Traffic(source="deep-research:sessions=400"),
            offered=drawn,
            requests=200,
            warm_up=400.0,
        ),
        Subject(
            name="reasoning",
            traffic=Traffic(source="reasoning:sessions=3000"),
            offered=drawn,
            requests=200,
            warm_up=200.0,
            drain_seconds=_LONG_DRAIN,
        ),
    )


def shared_prefixes() -> Sequence[Subject]:
    """Return inference-perf's shared prefixes, short answers (A) and long ones (B).

    At the first rate every prompt is sent once, at the second all have been sent before.
    """
    cold = Subject(
        name="shared A cold",
        traffic=Traffic(source="shared-prefix-a:sessions=1600"),
        offered=drawn,
        requests=566,  # for the square root of 8 pods: each prompt once
        warm_up=0.0,
        rate=2.5,
    )
    short = replace(cold, name="shared A warm", warm_up=60.0, rate=5.0)
    long = replace(
        cold,
        name="shared B cold",
        traffic=Traffic(source="shared-prefix-b:sessions=1800"),
        kv_tokens=400_000,
        requests=637,
        rate=1.5,
    )
    return (
        cold,
        short,
        long,
        replace(long, name="shared B warm", warm_up=130.0, requests=318, rate=2.5),
    )


def tasks(subjects: Sequence[Subject], grid: Grid) -> Iterator[Task]:
    """Yield every run, those of one traffic one after another.

    Fleets that differ from the grid's first in number or load alone come before the others.
    """
    fleets = itertools.product(grid.pods, grid.loads)
    nearest = sorted(
        fleets, key=lambda fleet: fleet[0] != grid.pods[0] and fleet[1] != grid.loads[0]
    )
    cases = (
        (*fleet, *each) for fleet in nearest for each in itertools.product(subjects, grid.speeds)
    )
    for (pods, load, subject, speeds), seed in itertools.product(cases, grid.seeds):
        each = _pods(subject, pods, speeds)
        speed = sum(pod.speed for pod in each)
        if subject.rate is None:
            rate, offer = load * speed / busy_seconds(subject.traffic), f"load {load:g}"
        else:
            rate, offer = speed * subject.rate, f"{speed * subject.rate:g}/s"
        offered = subject.offered(subject, rate, subject.seconds(rate, pods), seed)
        kind = "equal" if len(speeds) == 1 else "unequal"
        for name in grid.policies:
            yield Task(
                traffic=offered.traffic,
                plan=RunPlan(
                    policy=_policy(name),
                    pods=each,
                    seed=seed,
                    duration=offered.seconds,
                    drain_seconds=subject.drain_seconds,
                ),
                cell=f"{subject.name}, {pods} {kind} pods, {offer}",
                workload=f"{subject.name}, {kind}",
                load=load,
                warm_up=subject.warm_up,
            )


def _policy(name: str) -> Policy:
    """Return a policy as it is compared: with `least-ttft` alone do requests wait in the picker."""
    return NAMED[name] if name == "least-ttft" else replace(NAMED[name], flow=None)


def _pods(subject: Subject, count: int, speeds: Sequence[float]) -> tuple[PodPlan, ...]:
    limits = Limits(num_gpu_blocks=subject.kv_tokens // Limits().block_size + 1)
    return tuple(
        PodPlan(limits=limits, speed=subject.speed * speeds[number % len(speeds)])
        for number in range(count)
    )


@cache
def busy_seconds(traffic: Traffic) -> float:
    """Estimate what a request costs a pod, in seconds, where one cache holds all of a workload."""
    trace, cost = read_traffic(traffic), StepCost()
    step = cost.step_ms * 1e-3 / _BATCH + cost.decode_us_per_seq * 1e-6
    seconds = 0.0
    infinite = InfiniteCache(_REUSE_BLOCK)
    for call in trace.calls:
        prompt, generated = tokens_in(call.prompt), tokens_in(call.response)
        cached = infinite.admit(call)
        uncached = prompt - cached
        seconds += uncached * cost.prefill_us_per_token * 1e-6
        seconds += cost.attention_ns * 1e-9 * uncached * (cached + uncached / 2)
        seconds += generated * (step + cost.decode_ns_per_context_token * 1e-9 * prompt)
    return seconds / len(trace.calls)


@cache
def _conversations(traffic: Traffic) -> int:
    return len({call.session for call in read_traffic(traffic).calls})
