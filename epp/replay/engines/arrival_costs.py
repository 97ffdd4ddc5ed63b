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
    """Return what a request would meet that is not at the engine yet. Nothing changes."""
    budget, cost, speed = engine.limits.max_num_batched_tokens, engine.cost, engine.speed
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
    before = cost.step_ms * 1e-3 * (ceil((tokens + own) / budget) - steps)
    others = [*(each for each, _ in running), *waiting]
    decoding = [each for each in others if each.response_tokens > 1]
    context = sum(each.prompt_tokens + each.generated for each in decoding)
    looks_back = job.prompt_tokens + job.response_tokens // 2
    return ArrivalCosts(
        cached=cached,
        queued=engine.step_left + (before + _work(engine, tokens, attended)) / speed,
        prefill=(cost.step_ms * 1e-3 * steps + _work(engine, own, own * (cached + own / 2)))
        / speed,
        steps=steps,
        decode=_decode(engine, len(decoding), context) / speed,
        own=_decode(engine, 1, looks_back) / speed,
        step=cost.step_ms * 1e-3 / speed,
        requests=len(others),
        waiting_tokens=tokens,
    )


def _work(engine: Engine, tokens: int, attended: float) -> float:
    """Return what this many prompt tokens take at speed 1, without the steps."""
    return engine.cost.seconds(StepWork(tokens, attended)) - engine.cost.step_ms * 1e-3


def _decode(engine: Engine, sequences: int, context: int) -> float:
    """Return what sequences that decode add to a step at speed 1."""
    work = StepWork(decoding=sequences, context=context)
    return engine.cost.seconds(work) - engine.cost.step_ms * 1e-3


def _cached(engine: Engine, job: Job, pending: Iterable[_Keys]) -> int:
    """Return what is cached of a request once those that are `pending` are computed."""
    keys = engine.keys(job)
    size = engine.limits.block_size
    most = (job.prompt_tokens + job.generated - 1) // size
    shared = max((_shared(keys, each, most) for each in pending), default=0)
    return max(engine.cached_tokens(job), size * shared)


def _shared(keys: _Keys, others: _Keys, most: int) -> int:
    """Return how many of the first blocks two chains share; a key says that all before are."""
    if not keys or not others or keys[0] != others[0]:
        return 0
    both = range(min(most, len(keys), len(others)))
    return bisect_left(both, x=True, key=lambda at: keys[at] != others[at])
