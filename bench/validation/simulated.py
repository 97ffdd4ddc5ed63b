"""The same questions in simulation, at a cost that is taken from one real run."""

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from bench.validation.real import BATCH, BLOCK, BLOCKS, CONTEXT, SERVERS, Question
from epp.demo.figures import Sample
from epp.errors import WarmpickError
from epp.replay.engines.contract import Limits
from epp.replay.engines.cost import StepCost
from epp.replay.plan import PodPlan, RunPlan
from epp.replay.policies import NAMED
from epp.replay.results.measures import percentile
from epp.replay.simulation.outcome import CallOutcome
from epp.replay.simulation.run import Simulation
from epp.replay.traffic.calls import Call, Run, Trace


class CannotCalibrate(WarmpickError):
    """A real run does not show what a prompt token costs."""


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


def calibrated(samples: Sequence[Sample]) -> StepCost:
    """Return what a step costs, from the prompts of one real run that had a server to themselves.

    A prompt token costs what it took in the median of those that were at least half computed. A
    step decodes in the time between an answer's tokens that a quarter of the answers are below:
    others share steps with prompts, and a client that was busy sees tokens come at once. Raises
    `CannotCalibrate`.
    """
    steps = ((each.seconds - each.ttft) / (each.completion_tokens - 1) for each in samples)
    step = percentile(steps, 25)
    alone = [each for each in samples if 2 * each.computed_tokens >= each.prompt_tokens]
    alone = [each for each in alone if not any(_meet(each, other) for other in samples)]
    if not alone:
        raise CannotCalibrate("no prompt had a server to itself: the load was too high")
    token = median((each.ttft - step) / each.computed_tokens for each in alone)
    # Linear, as all questions are about as long.
    return StepCost(
        step_ms=step * 1e3,
        prefill_us_per_token=max(0.0, token) * 1e6,
        attention_ns=0,
        decode_us_per_seq=0,
        decode_ns_per_context_token=0,
    )


def _meet(one: Sample, other: Sample) -> bool:
    """Return whether another request was at the server while the prompt of one was computed."""
    return (
        other is not one
        and other.server == one.server
        and other.sent_at < one.sent_at + one.ttft
        and one.sent_at < other.sent_at + other.seconds
    )


def play(
    policy: str, questions: Sequence[Question], cost: StepCost, seed: int = 0
) -> Sequence[CallOutcome]:
    """Simulate a policy."""
    pods = [PodPlan(limits=_LIMITS, cost=cost)] * SERVERS
    plan = RunPlan(policy=NAMED[policy], pods=pods, seed=seed)
    return Simulation(_trace(questions), plan).run().outcomes


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
