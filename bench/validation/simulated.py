"""The same questions in simulation, at a cost that is taken from one real run."""

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from bench.validation.real import BATCH, BLOCK, BLOCKS, CONTEXT, SERVERS, Question
from epp.demo.figures import Sample
from epp.replay.engines.contract import Limits
from epp.replay.engines.cost import StepCost
from epp.replay.plan import PodPlan, RunPlan
from epp.replay.policies import policy_named
from epp.replay.simulation.outcome import CallOutcome
from epp.replay.simulation.run import Simulation
from epp.replay.traffic.calls import Call, Run, Trace

SCRAPED = 2.0
"""When the first question comes, in seconds: the picker has seen all servers by then."""
_ANSWER = 1 << 20
"""The tokens of answers, which nobody repeats, are this and more."""
_LIMITS = Limits(
    block_size=BLOCK,
    num_gpu_blocks=BLOCKS,
    max_num_batched_tokens=BATCH,
    max_model_len=CONTEXT,
)
_HALVINGS = 20
_DEAREST = 1e5
"""Microseconds for a prompt token, at most."""


def calibrated(policy: str, questions: Sequence[Question], samples: Sequence[Sample]) -> StepCost:
    """Return the cost at which a policy's mean TTFT is what it was in a real run.

    A step decodes in the shortest time that was seen between an answer's tokens.
    """
    step = min((each.seconds - each.ttft) / (each.completion_tokens - 1) for each in samples)
    wanted = fmean(each.ttft for each in samples)
    cheap, dear = 0.0, _DEAREST
    for _ in range(_HALVINGS):
        middle = (cheap + dear) / 2
        if fmean(each.ttft for each in play(policy, questions, _cost(step, middle))) < wanted:
            cheap = middle
        else:
            dear = middle
    return _cost(step, cheap)


def play(
    policy: str, questions: Sequence[Question], cost: StepCost, seed: int = 0
) -> Sequence[CallOutcome]:
    """Simulate a policy."""
    pods = [PodPlan(limits=_LIMITS, cost=cost)] * SERVERS
    plan = RunPlan(policy=policy_named(policy), pods=pods, seed=seed)
    return Simulation(_trace(questions), plan).run().outcomes


def _cost(step: float, prefill_us: float) -> StepCost:
    """Return a cost that is linear, as all questions are about as long."""
    return StepCost(
        step_ms=step * 1e3,
        prefill_us_per_token=prefill_us,
        attention_ns=0,
        decode_us_per_seq=0,
        decode_ns_per_context_token=0,
    )


def _trace(questions: Sequence[Question]) -> Trace:
    calls = [
        Call(
            at=SCRAPED + each.at,
            prompt=[Run(token, len(list(equal))) for token, equal in groupby(each.prompt)],
            response=[Run(_ANSWER + number, each.answer)],
            session=number,
        )
        for number, each in enumerate(questions)
    ]
    return Trace(name="validation", calls=calls)
