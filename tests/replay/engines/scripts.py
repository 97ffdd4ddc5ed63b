"""Small engines, and traffic for them that shares beginnings and runs out of blocks."""

import random
from functools import partial
from typing import NamedTuple

from epp.replay.engines.contract import EngineLoad, Job, Limits, Progress
from epp.replay.engines.cost import StepCost
from epp.replay.engines.engine import Engine
from epp.replay.simulation.clock import Clock
from epp.replay.traffic.calls import Run, tokens_in

ADAPTERS = ("", "a", "b", "a", "c", "", "b")
"""Those of requests by their number, over and over."""


class Heard(NamedTuple):
    job: int
    progress: Progress
    at: float


class Played(NamedTuple):
    """What a script did on an engine, and what is left of it."""

    heard: list[Heard]
    outcomes: list[tuple[int, int, int]]
    scheduled: list[float]
    free: list[int | None]
    load: EngineLoad
    blocks: int


def drawn(seed):
    """Limits and calls that a seed stands for."""
    rng = random.Random(seed)  # noqa: S311
    limits = draw_limits(rng)
    return limits, draw_calls(rng, limits)


def draw_limits(rng):
    return Limits(
        num_gpu_blocks=rng.choice([20, 30, 60, 200]),
        max_model_len=2000,
        max_num_batched_tokens=rng.choice([24, 100, 512]),
        max_num_seqs=rng.choice([2, 4, 30]),
        enable_prefix_caching=rng.random() < 0.9,
        max_loras=rng.choice([0, 0, 1, 2]),
    )


def draw_calls(rng, limits, count=50):
    """Times, prompts and responses; most prompts go on with, or repeat, something before."""
    calls: list[tuple[float, list[Run], list[Run], bool]] = []
    stems: list[list[Run]] = []
    at = 0.0
    for number in range(count):
        at += rng.expovariate(rng.choice([3.0, 8.0, 20.0]))
        stem = rng.choice(stems) if stems and rng.random() < 0.7 else []
        fresh = [Run(1000 + number, rng.randrange(1, 200))] if rng.random() < 0.9 else []
        prompt = [*stem, *fresh] or [Run(1, 40)]
        response = [Run(rng.choice([7, 5000 + number]), rng.randrange(1, 120))]
        if tokens_in(prompt) + tokens_in(response) <= limits.context:
            calls.append((at, prompt, response, rng.random() < 0.1))
            stems = [*stems, [*prompt, *response], prompt][-6:]
    return calls


def free_order(pool):
    """Return the keys of all free blocks, the next to be evicted first; None for those without."""
    content = pool.free_blocks()
    return [None] * (pool.free // pool.block - len(content)) + content


def play(limits, calls, progress_tokens, faults=()):
    """Send calls to an engine; `faults` are times and what is then done with it."""
    clock, heard = Clock(), []

    def listen(job, progress):
        if progress is not Progress.SOME:
            heard.append(Heard(job.number, progress, clock.now))

    engine = Engine(limits, StepCost(), clock, listen, progress_tokens=progress_tokens)
    jobs = [
        Job(number, prompt, response, transferred=transferred, adapter=ADAPTERS[number % 7])
        for number, (_, prompt, response, transferred) in enumerate(calls)
    ]
    for job, (at, *_) in zip(jobs, calls, strict=True):
        clock.at(at, partial(engine.submit, job))
    for at, do in faults:
        clock.at(at, partial(do, engine))
    clock.run(lambda: False)
    pool = engine._scheduler.pool
    outcomes = [(job.cached, job.preempted, job.generated) for job in jobs]
    scheduled = [job.scheduled_at for job in jobs]
    return Played(
        heard, outcomes, scheduled, free_order(pool), engine.load, limits.num_gpu_blocks - 1
    )
