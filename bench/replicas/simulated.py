"""Replicas in virtual time: what they decide beside one, and how evenly, at a lag.

Simulated here are engines, clients and the network; what pickers do is the product's own code,
with the facts as they are written and read (`told.py`).
"""

from collections import Counter
from statistics import mean

import msgspec
from msgspec.structs import replace

from bench.hold import beside, loads, runs
from bench.replicas.told import exchange
from epp.replay.engines.contract import Limits
from epp.replay.plan import PodPlan, RunPlan, Traffic
from epp.replay.policies import NAMED
from epp.replay.simulation.outcome import CallStatus
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import read_traffic
from epp.replay.traffic.calls import Call, Run, Trace

LAG_SECONDS = 0.003
"""From one replica to another: what `lag_ms_p99` allows, and more than it measures."""
PODS = 8
WORKLOAD = "interactive-chat"
_POD = PodPlan(limits=Limits(num_gpu_blocks=20_001))
LOADED, FLOODED = "loaded", beside.FLOODED
_LOAD = 1.2
_MEASURED = {LOADED: "", FLOODED: beside.GOOD}
_WINDOW = 0.05
_BUSIEST_PODS = 10
_BUSIEST_RATE = 1000.0
_SHORT_PROMPT, _SHORT_RESPONSE = 128, 16
"""Tokens."""


class Case(msgspec.Struct, frozen=True):
    """One run: so many replicas, told or each on its own."""

    replicas: int
    told: bool = True
    requests: int = 3000


def held_up(name: str, replicas: int, seed: int) -> float:
    """Return the mean time to first token past what pods serve, in seconds.

    Of all requests (`LOADED`), or of a client beside a flood (`FLOODED`).
    """
    cases = {
        LOADED: loads.case(_LOAD, NAMED[loads.HOLDING], None, seed),
        **dict(beside.cases(seed)),
    }
    plan = replace(cases[name].plan, pickers=replicas, exchange_seconds=LAG_SECONDS)
    return runs.play(replace(cases[name], plan=plan))[_MEASURED[name]].ttft


class Outcome(msgspec.Struct, frozen=True):
    """What came of it: cached tokens of all, and the mean time to first token in seconds."""

    hit: float
    ttft: float


def play(case: Case) -> Outcome:
    """Play one run."""
    trace = read_traffic(Traffic(source=WORKLOAD, requests=case.requests))
    plan = RunPlan(policy=NAMED["least-ttft"], pods=(_POD,) * PODS, pickers=case.replicas)
    simulation = Simulation(trace, plan)
    if case.told and case.replicas > 1:
        exchange(simulation, LAG_SECONDS)
    served = [each for each in simulation.run().outcomes if each.status is CallStatus.SERVED]
    cached = sum(each.cached for each in served)
    return Outcome(
        hit=cached / sum(each.prompt for each in served),
        ttft=mean(each.ttft for each in served),
    )


def busiest(replicas: int, requests: int) -> tuple[float, float]:
    """Return the most that an endpoint got within 50 ms, in even shares, and the mean TTFT.

    Short requests that share nothing arrive evenly, 1,000 a second, at so many replicas in turn.
    """
    calls = [
        Call(
            at=number / _BUSIEST_RATE,
            prompt=(Run(2 * number, _SHORT_PROMPT),),
            response=(Run(2 * number + 1, _SHORT_RESPONSE),),
            session=number,
        )
        for number in range(requests)
    ]
    trace = Trace(name="busy", calls=calls)
    plan = RunPlan(
        policy=NAMED["least-ttft"],
        pods=(PodPlan(limits=Limits(num_gpu_blocks=100_001)),) * _BUSIEST_PODS,
        pickers=replicas,
    )
    simulation = Simulation(trace, plan)
    if replicas > 1:
        exchange(simulation, LAG_SECONDS)
    sent = [each for each in simulation.run().outcomes if each.endpoint >= 0]
    counts = Counter((int(each.at / _WINDOW), each.endpoint) for each in sent)
    share = max(counts.values()) / (_BUSIEST_RATE * _WINDOW / _BUSIEST_PODS)
    return share, mean(each.ttft for each in sent)
