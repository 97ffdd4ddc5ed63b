"""What is studied: which traffic meets which fleet, how much of it, under which policies."""

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.accuracy import lmcache, mooncake
from epp.config.file import POLICIES
from epp.replay.engines.contract import Limits
from epp.replay.engines.cost import StepCost
from epp.replay.plan import PodPlan, RunPlan, Traffic
from epp.replay.policies import BASELINES, policy_named
from epp.replay.sweep import Task, read_traffic
from epp.replay.traffic.calls import Trace, block_keys, joined, tokens_in

BASELINE = "incumbent"
NAMES = (BASELINE, *(name for name in (*BASELINES, *POLICIES) if name != BASELINE))
UNEQUAL = (1.0, 0.4)
"""The speeds of pods in turn: every second one is 2.5 times slower."""
_BATCH = 32
"""Sequences that share a step of decoding, where what a fleet can do is estimated."""
_REUSE_BLOCK = 128
WARM_UP_SECONDS = 60.0


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A workload; `requests` for each pod are played on pods of `kv_tokens`."""

    name: str
    traffic: Traffic
    kv_tokens: int = 1_600_000
    requests: int = 250


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """All that is varied. `loads` are shares of what a fleet can do by `busy_seconds`."""

    pods: Sequence[int] = (4, 8, 16, 32)
    loads: Sequence[float] = (0.3, 0.5, 0.7)
    speeds: Sequence[Sequence[float]] = ((1.0,), UNEQUAL)
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    policies: Sequence[str] = NAMES


QUICK = Grid(pods=(4, 8), loads=(0.5,), seeds=(0, 1, 2))


def subjects(traces: Path) -> Sequence[Subject]:
    """Return both public traces, which lie in a folder, and four workloads of the catalog."""
    conversation = Traffic(source=str(traces / mooncake.NAME))
    agents = Traffic(source=str(traces / lmcache.NAME))
    return (
        Subject(name="conversation", traffic=conversation),
        Subject(name="agents", traffic=agents, kv_tokens=200_000),
        Subject(name="chat", traffic=Traffic(source="interactive-chat:sessions=3000")),
        Subject(
            name="code",
            traffic=Traffic(source="code-generation:sessions=400,longest=120000"),
            requests=150,
        ),
        Subject(name="research", traffic=Traffic(source="deep-research:sessions=800")),
        Subject(name="reasoning", traffic=Traffic(source="reasoning:sessions=9000")),
    )


def tasks(subjects: Sequence[Subject], grid: Grid) -> Iterator[Task]:
    """Yield every run, those of one traffic one after another."""
    fleets = itertools.product(subjects, grid.pods, grid.loads)
    for (subject, pods, load), seed in itertools.product(fleets, grid.seeds):
        for speeds in grid.speeds:
            each = _pods(subject, pods, speeds)
            traffic = _offered(subject, each, load, seed)
            kind = "equal" if len(speeds) == 1 else "unequal"
            for name in grid.policies:
                yield Task(
                    traffic=traffic,
                    plan=RunPlan(policy=policy_named(name), pods=each, seed=seed),
                    cell=f"{subject.name}, {pods} {kind} pods, load {load:g}",
                    workload=f"{subject.name}, {kind}",
                    load=load,
                    warm_up=WARM_UP_SECONDS,
                )


def _pods(subject: Subject, count: int, speeds: Sequence[float]) -> tuple[PodPlan, ...]:
    limits = Limits(num_gpu_blocks=subject.kv_tokens // Limits().block_size + 1)
    return tuple(
        PodPlan(limits=limits, speed=speeds[number % len(speeds)]) for number in range(count)
    )


def _offered(subject: Subject, pods: Sequence[PodPlan], load: float, seed: int) -> Traffic:
    """Return so much traffic that the fleet is busy for a share `load` of the time."""
    rate = load * sum(pod.speed for pod in pods) / busy_seconds(subject.traffic)
    return replace(
        subject.traffic, seed=seed, rate=round(rate, 4), requests=subject.requests * len(pods)
    )


@cache
def busy_seconds(traffic: Traffic) -> float:
    """Estimate what a request costs a pod, in seconds, where one cache holds all of a workload."""
    trace, cost = read_traffic(traffic), StepCost()
    step = cost.step_ms * 1e-3 / _BATCH + cost.decode_us_per_seq * 1e-6
    seconds = 0.0
    for prompt, cached, generated in _sizes(trace):
        uncached = prompt - cached
        seconds += uncached * cost.prefill_us_per_token * 1e-6
        seconds += cost.attention_ns * 1e-9 * uncached * (cached + uncached / 2)
        seconds += generated * (step + cost.decode_ns_per_context_token * 1e-9 * prompt)
    return seconds / len(trace.calls)


def _sizes(trace: Trace) -> Iterator[tuple[int, int, int]]:
    """Yield each prompt's tokens, those that an infinite cache has, and those generated."""
    seen: set[int] = set()
    for call in trace.calls:
        keys = block_keys(joined(call.prompt, call.response), _REUSE_BLOCK)
        known = next((place for place, key in enumerate(keys) if key not in seen), len(keys))
        seen.update(keys[known:])
        prompt = tokens_in(call.prompt)
        yield prompt, min(known * _REUSE_BLOCK, prompt - 1), tokens_in(call.response)
