"""What replay predicts for the same questions: simulated engines, the product's own picker.

The cost of a step is taken from what was measured without caching on one server alone: the
shortest time between tokens, and how long all prompts together took.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec
from asking import Asked, Setting
from stand import BATCH, BLOCK, BLOCKS

from epp.replay.engines.contract import Limits
from epp.replay.engines.cost import StepCost
from epp.replay.plan import PodPlan, RunPlan
from epp.replay.policies import NAMED
from epp.replay.simulation.outcome import CallOutcome
from epp.replay.simulation.run import Simulation
from epp.replay.traffic.calls import Call, Run, Runs, Trace

POLICY = "least-ttft"
MEASURED = Setting(caching=False, servers=1)
_SCRAPED = 2.0
"""When the first questions come, in seconds: the picker has seen all servers by then."""
_HALVINGS = 20
_DEAREST = 1e5
"""Microseconds for a prompt token, at most."""


class Foretold(msgspec.Struct, frozen=True):
    """What replay predicts for one question: cached tokens, and TTFT in seconds."""

    cached: int
    ttft: float


Predicted = dict[tuple[Setting, int, int], Foretold]
"""By setting, reader and question."""


def predict(asked: Sequence[Asked]) -> Predicted:
    """Replay one demonstration under all its settings."""
    cost = calibrated([each for each in asked if each.setting == MEASURED])
    predicted: Predicted = {}
    for setting in dict.fromkeys(each.setting for each in asked):
        rows = _ordered([each for each in asked if each.setting == setting])
        for outcome in _played(rows, cost):
            row = rows[outcome.call]
            key = (setting, row.reader, row.question)
            predicted[key] = Foretold(outcome.cached, outcome.ttft)
    return predicted


def calibrated(asked: Sequence[Asked]) -> StepCost:
    """Return the cost at which a run takes as long as it did."""
    rows = _ordered(asked)
    step = min((each.seconds - each.ttft) / (len(each.generated) - 1) for each in rows)
    wanted = max(each.at + each.seconds for each in rows)
    cheap, dear = 0.0, _DEAREST
    for _ in range(_HALVINGS):
        middle = (cheap + dear) / 2
        played = _played(rows, _cost(step, middle))
        if max(each.at + each.end_to_end for each in played) - _SCRAPED < wanted:
            cheap = middle
        else:
            dear = middle
    return _cost(step, cheap)


def _cost(step: float, prefill_us: float) -> StepCost:
    """Return a linear cost, since all texts of one demonstration are about equally long."""
    return StepCost(
        step_ms=step * 1e3,
        prefill_us_per_token=prefill_us,
        attention_ns=0,
        decode_us_per_seq=0,
        decode_ns_per_context_token=0,
    )


def _played(rows: Sequence[Asked], cost: StepCost) -> Sequence[CallOutcome]:
    setting = rows[0].setting
    limits = Limits(
        block_size=BLOCK,
        num_gpu_blocks=BLOCKS,
        max_num_batched_tokens=BATCH,
        enable_prefix_caching=setting.caching,
    )
    pods = [PodPlan(limits=limits, cost=cost)] * setting.servers
    plan = RunPlan(policy=NAMED[POLICY], pods=pods)
    return Simulation(_trace(rows), plan).run().outcomes


def _ordered(asked: Sequence[Asked]) -> list[Asked]:
    """Return answers in the order of asking, as a trace has them: by readers' turns."""
    return sorted(asked, key=lambda each: (each.question, each.reader))


def _trace(rows: Sequence[Asked]) -> Trace:
    """Return the questions as calls.

    Readers begin when they did, and ask the next question when the last one is answered.
    """
    begun = {each.reader: each.at for each in rows if each.question == 1}
    numbers = {(each.reader, each.question): number for number, each in enumerate(rows)}
    calls = [
        Call(
            at=_SCRAPED + (each.at if each.question == 1 else max(begun.values())),
            prompt=_runs(each.prompt),
            response=_runs(each.generated),
            session=each.reader,
            after=numbers.get((each.reader, each.question - 1)),
        )
        for each in rows
    ]
    return Trace(name=str(rows[0].setting), calls=calls, closed=True)


def _runs(tokens: Sequence[int]) -> Runs:
    return [Run(token, len(list(equal))) for token, equal in groupby(tokens)]
