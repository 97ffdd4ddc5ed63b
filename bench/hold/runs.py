"""Runs in virtual time, and what their clients got; each in a process of its own."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isnan

import msgspec

from bench.hold.traffic import Client, drawn
from epp.replay.engines.presets import limits_of
from epp.replay.plan import PodPlan, RunPlan, Traffic
from epp.replay.results.measures import mean, percentile, ratio
from epp.replay.simulation.outcome import CallOutcome, CallStatus
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import processes, read_traffic

POD = PodPlan(limits=limits_of(1_600_000))
"""A server like an 8B model on an H100, with 1.6M tokens of cache."""
WARM_UP_SECONDS = 120.0
DRAIN_SECONDS = 7200.0

Offered = Traffic | tuple[Client, ...]
"""A recorded trace, or clients whose conversations are drawn."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a policy; requests that come before `warm_up` seconds are not counted."""

    offered: Offered
    plan: RunPlan
    warm_up: float = WARM_UP_SECONDS


class Got(msgspec.Struct, frozen=True, kw_only=True):
    """What one client got: seconds to the first token by the time of its requests, and the rest.

    `sent` holds the time at which each request went to an engine, for those that did.
    """

    requests: int
    refused: int
    unfinished: int
    first_tokens: Sequence[tuple[float, float]]
    sent: Sequence[float]
    end_to_end: float
    cached: float

    @property
    def ttft(self) -> float:
        """The mean time to the first token, in seconds."""
        return mean(seconds for _, seconds in self.first_tokens)

    def ttft_percentile(self, percent: float) -> float:
        """Return a percentile of it."""
        return percentile((seconds for _, seconds in self.first_tokens), percent)


Result = dict[str, Got]
"""By the client's name; that of a trace has none."""


def play(case: Case) -> Result:
    """Play one run to its end."""
    offered = case.offered
    trace = (
        read_traffic(offered) if isinstance(offered, Traffic) else drawn(offered, case.plan.seed)
    )
    clients: defaultdict[str, list[CallOutcome]] = defaultdict(list)
    for outcome in Simulation(trace, case.plan).run().outcomes:
        if outcome.at >= case.warm_up:
            clients[trace.calls[outcome.call].tenant].append(outcome)
    return {name: _got(outcomes) for name, outcomes in clients.items()}


def on_cores(cases: Sequence[Case]) -> Iterator[Result]:
    """Yield what each case gave, in their order."""
    with processes(min(2, len(cases))) as pool:
        yield from pool.map(play, cases)


def _got(outcomes: Sequence[CallOutcome]) -> Got:
    begun = [each for each in outcomes if not isnan(each.ttft)]
    served = [each for each in outcomes if each.status is CallStatus.SERVED]
    return Got(
        requests=len(outcomes),
        refused=sum(each.status is CallStatus.REFUSED for each in outcomes),
        unfinished=sum(each.status is CallStatus.UNFINISHED for each in outcomes),
        first_tokens=[(each.at, each.ttft) for each in begun],
        sent=sorted(each.at + each.queued for each in begun),
        end_to_end=mean(each.end_to_end for each in served),
        cached=ratio(sum(each.cached for each in begun), sum(each.prompt for each in begun)),
    )
