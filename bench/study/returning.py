"""Whether it helps to keep endpoints free for conversations that are about to go on.

python -m bench.study.returning --traces FOLDER [--seeds N] [--jobs N]

`least-ttft` is told more than it could learn from prefixes: which conversations go on within the
next seconds, where they were served, and how many tokens of their next prompts are new. What these
take is added, times a weight, to the prefill that is queued there. Prints ratios to the same
without the addition, over the traces and workloads that have conversations.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from bench.study.command import answer
from bench.study.field import geometric_mean
from bench.study.grid import Grid, subjects, tasks
from epp.model.candidate import Candidate
from epp.model.endpoint import EndpointId
from epp.model.request import InferenceRequest
from epp.replay.engines.contract import Job
from epp.replay.plan import RunPlan
from epp.replay.simulation.outcome import CallStatus
from epp.replay.simulation.run import Simulation
from epp.replay.simulation.visit import Visit
from epp.replay.sweep import Task, play
from epp.replay.traffic.calls import Trace, tokens_in
from epp.values import replaced

NAMES = ("conversation", "agents", "chat")
CACHED = 8_000
"""Tokens of context that a next prompt's new tokens are taken to look back at."""


class Addition(NamedTuple):
    """Conversations that go on within `seconds` count, each as `weight` of what it will take."""

    seconds: float
    weight: float


NOTHING = Addition(0.0, 0.0)
ADDITIONS = (Addition(1, 1), Addition(3, 1), Addition(10, 1), Addition(3, 0.3), Addition(10, 0.3))


class Next(NamedTuple):
    """The next prompt of a conversation: when it comes, where it was served, what is new in it."""

    at: float
    endpoint: EndpointId
    tokens: int


class Returning(Simulation):
    """A run of `least-ttft` that knows which conversations go on when.

    The plan's policy must be `oracle`: this run takes the oracle's place as the filter.
    """

    def __init__(self, trace: Trace, plan: RunPlan, addition: Addition) -> None:
        self._addition = addition
        self._next: dict[int, Next] = {}
        super().__init__(trace, plan)

    def _oracle(self) -> "Returning":
        return self

    def filter(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """Return the same endpoints with what is about to come to them in their queues."""
        self._next.pop(int(request.id), None)
        coming = self._coming()
        return [
            replaced(
                each,
                queued_prefill_seconds=each.queued_prefill_seconds + coming[each.endpoint.id],
            )
            for each in candidates
        ]

    def _coming(self) -> Mapping[EndpointId, float]:
        seconds, weight = self._addition
        tokens: defaultdict[EndpointId, int] = defaultdict(int)
        for each in self._next.values():
            if self.now <= each.at <= self.now + seconds:
                tokens[each.endpoint] += each.tokens
        pods = self.pickers[0].fleet.pods
        return defaultdict(
            float,
            {
                endpoint: weight
                * pods[endpoint].pace.prefill_slowness.value
                * pods[endpoint].speed.prefill.seconds(count, CACHED)
                for endpoint, count in tokens.items()
            },
        )

    def _over(
        self, visit: Visit, status: CallStatus, job: Job | None = None, *, reason: str = ""
    ) -> None:
        call = visit.call
        for number in self._followers.get(visit.number, ()) if visit.pod >= 0 else ():
            following = self._trace.calls[number]
            if following.session == call.session:
                known = tokens_in(call.prompt) + tokens_in(call.response)
                self._next[number] = Next(
                    max(following.at, self.now + following.think),
                    self.pods[visit.pod].endpoint.id,
                    max(1, tokens_in(following.prompt) - known),
                )
        super()._over(visit, status, job, reason=reason)


def figures(task: Task, addition: Addition) -> Mapping[str, float]:
    """Play one run."""
    return play(task, partial(Returning, addition=addition)).figures


def cases(traces: Path, seeds: int) -> Sequence[Task]:
    """Return the runs, each of which is played with every addition."""
    wanted = [each for each in subjects(traces) if each.name in NAMES]
    grid = Grid(pods=(4,), loads=(0.5, 0.7), seeds=range(seeds), policies=("oracle",))
    return list(tasks(wanted, grid))


def rows(
    wanted: Sequence[Task], played: Mapping[tuple[int, Addition], Mapping[str, float]]
) -> Iterator[str]:
    """Yield the rows of a table: an addition, and its ratios in TTFT and end to end."""
    yield "| within | weight | mean TTFT, equal | unequal | end to end, equal | unequal |"
    yield "|--:|--:|--:|--:|--:|--:|"
    for addition in ADDITIONS:
        ratios: list[str] = []
        for measure, kind in product(("ttft_mean", "end_to_end_mean"), (" equal", " unequal")):
            pairs = [
                (played[number, addition], played[number, NOTHING])
                for number, task in enumerate(wanted)
                if kind in task.workload
            ]
            mean = geometric_mean(ours[measure] / base[measure] for ours, base in pairs)
            ratios.append(f"{mean:.3f}")
        yield f"| {addition.seconds:g} s | {addition.weight:g} | {' | '.join(ratios)} |"


def table(wanted: Sequence[Task], pool: ProcessPoolExecutor) -> Iterator[str]:
    """Yield the table of these runs, each with every addition."""
    keys = list(product(range(len(wanted)), (NOTHING, *ADDITIONS)))
    numbers, additions = zip(*keys, strict=True)
    found = pool.map(figures, [wanted[number] for number in numbers], additions)
    return rows(wanted, dict(zip(keys, found, strict=True)))


if __name__ == "__main__":
    sys.exit(answer("returning", __doc__, 3, cases, table))
