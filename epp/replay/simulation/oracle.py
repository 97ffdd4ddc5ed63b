"""What a policy would do if it knew the truth: candidates as the simulated engines know them."""

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from epp.model.candidate import Candidate
from epp.model.request import InferenceRequest
from epp.policy.plugins import Candidates
from epp.replay.engines.arrival_costs import ArrivalCosts, arrival_costs
from epp.replay.engines.contract import Job
from epp.replay.engines.engine import Engine
from epp.replay.traffic.calls import Call
from epp.values import replaced


class Oracle:
    """A filter that drops no endpoint, and replaces a picker's predictions with the truth.

    It knows what is cached, what is queued, how fast each pod is and how long the response will be.
    The fleet's busy share stays the picker's own. Requests are named by their numbers in `calls`.
    `engines` are those of the endpoints, by id.
    """

    def __init__(self, calls: Sequence[Call], engines: Mapping[str, Engine]) -> None:
        self._calls = calls
        self._engines = engines

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return the same endpoints, with what the request would really find there."""
        number = int(request.id)
        call = self._calls[number]
        job = Job(number, call.prompt, call.response, adapter=call.adapter)
        engines = [self._engines[each.endpoint.id] for each in candidates]
        speed = geometric_mean([engine.speed for engine in engines])
        return [
            _with_truth(each, job, engine, arrival_costs(engine, job), speed)
            for each, engine in zip(candidates, engines, strict=True)
        ]


def _with_truth(
    candidate: Candidate, job: Job, engine: Engine, truth: ArrivalCosts, class_speed: float
) -> Candidate:
    block, tokens = engine.limits.block_size, job.response_tokens
    beside = truth.decode + truth.requests * truth.own
    stall = truth.requests * truth.prefill
    return replaced(
        candidate,
        prompt_tokens=job.prompt_tokens,
        cached_tokens=truth.cached,
        matched_blocks=truth.cached // block,
        total_blocks=job.prompt_tokens // block,
        queued_prefill_seconds=truth.queued,
        prefill_seconds=truth.prefill,
        class_prefill_seconds=truth.prefill * engine.speed / class_speed,
        decode_seconds=truth.steps * truth.decode,
        generation_seconds=tokens * (truth.step + truth.own + truth.decode),
        crowding_seconds=tokens * beside + stall,
        requests=truth.requests,
        in_flight_tokens=truth.waiting_tokens,
    )
