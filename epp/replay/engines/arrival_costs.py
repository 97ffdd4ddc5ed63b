"""What a prompt would meet at a simulated engine: the truth that pickers can only estimate."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

from epp.replay.engines.contract import Job
from epp.replay.engines.cost import StepWork
from epp.replay.engines.engine import Engine

_Keys = Sequence[int]


class ArrivalCosts(NamedTuple):
    """What a request would find if it came to an engine now; times are at the engine's speed."""

    cached: int
    """Tokens that would come from the cache, with those that prompts before it will bring there."""
    queued: float
    """Seconds until the step under way and all prompts before it are computed."""
    prefill: float
    """Seconds of its own prefill."""
    steps: int
    """Steps of its prefill."""
    decode: float
    """Seconds that each of `steps` takes longer for the requests that are there."""
    own: float
    """Seconds that it adds to each of their steps while it decodes, on average."""
    step: float
    """Seconds of a step that computes nothing."""
    requests: int
    """Requests that are there."""
    waiting_tokens: int
    """Tokens that are computed within `queued` after the step."""


def arrival_costs(engine: Engine, job: Job) -> ArrivalCosts:
    """Return what a request that is not at the engine yet would meet there; changes nothing."""
    budget, cost, speed = engine.limits.max_num_batched_tokens, engine.cost, engine.speed
    step = cost.step_ms * 1e-3
    running, waiting = engine.running, engine.waiting
    pending: list[_Keys] = []
    tokens, attended = 0, 0.0
    for each, computed in [*running, *((each, None) for each in waiting)]:
        start = _cached(engine, each, pending) if computed is None else computed
        left = each.prompt_tokens + each.generated - start
        if left > 1 or computed is None:  # a running request with one token left decodes
            tokens += left
            attended += left * (start + left / 2)
            pending.append(engine.keys(each))
    cached = _cached(engine, job, pending)
    own = job.prompt_tokens - cached
    steps = ceil(own / budget)
    before = step * (ceil((tokens + own) / budget) - steps)
    others = [*(each for each, _ in running), *waiting]
    decoding = [each for each in others if each.response_tokens > 1]
    context = sum(each.prompt_tokens + each.generated for each in decoding)
    looks_back = job.prompt_tokens + job.response_tokens // 2
    queued, prefill, decode, beside = (
        cost.seconds(work) - step
        for work in (
            StepWork(tokens, attended),
            StepWork(own, own * (cached + own / 2)),
            StepWork(decoding=len(decoding), context=context),
            StepWork(decoding=1, context=looks_back),
        )
    )
    return ArrivalCosts(
        cached=cached,
        queued=engine.step_left + (before + queued) / speed,
        prefill=(step * steps + prefill) / speed,
        steps=steps,
        decode=decode / speed,
        own=beside / speed,
        step=step / speed,
        requests=len(others),
        waiting_tokens=tokens,
    )


def _cached(engine: Engine, job: Job, pending: Iterable[_Keys]) -> int:
    """Return how much of a request is cached once the `pending` ones are computed."""
    keys = engine.keys(job)
    size = engine.limits.block_size
    most = (job.prompt_tokens + job.generated - 1) // size
    shared = max((_shared(keys, each, most) for each in pending), default=0)
    return max(engine.cached_tokens(job), size * shared)


def _shared(keys: _Keys, others: _Keys, most: int) -> int:
    """Return how many leading blocks two chains share; equal keys mean equal blocks before."""
    both = range(min(most, len(keys), len(others)))
    return bisect_left(both, x=True, key=lambda at: keys[at] != others[at])
