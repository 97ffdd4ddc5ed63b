"""The least that a first token takes, and its share of what it took."""

import pytest

from bench.study.floor import POLICIES, floor_seconds, gathered, rows
from epp.replay.plan import PodPlan, RunPlan, Traffic
from epp.replay.policies import NAMED
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import Task
from epp.replay.traffic.calls import Call, Run, Trace


@pytest.mark.parametrize("speed", [1.0, 0.4])
@pytest.mark.parametrize("tokens", [2, 1_000, 8_192, 8_200, 50_000])
def test_a_request_that_meets_an_idle_pod_takes_the_floor(tokens, speed):
    pod = PodPlan(speed=speed)
    trace = Trace(
        name="test", calls=[Call(at=0.0, prompt=[Run(1, tokens)], response=[Run(2, 4)], session=0)]
    )
    plan = RunPlan(policy=NAMED["least-ttft"], pods=[pod])
    (outcome,) = Simulation(trace, plan).run().outcomes
    assert floor_seconds(outcome, pod) == pytest.approx(outcome.ttft)


def test_what_was_computed_before_is_not_computed_again_at_the_floor():
    pod = PodPlan()
    calls = [
        Call(at=at, prompt=[Run(1, 6_400), Run(2 + at, 100)], response=[Run(9, 4)], session=0)
        for at in (0, 5)
    ]
    plan = RunPlan(policy=NAMED["round-robin"], pods=[pod, pod])
    _, again = Simulation(Trace(name="test", calls=calls), plan).run().outcomes
    assert floor_seconds(again, pod) < 0.1 * again.ttft  # the other pod has not seen it


def test_the_table_has_the_mean_share_of_each_policy():
    wanted = [
        Task(
            traffic=Traffic(source="chat"),
            plan=RunPlan(policy=NAMED[policy], pods=[PodPlan()], seed=seed),
            cell="chat, 1 pod",
            workload="chat",
            load=0.5,
        )
        for policy in POLICIES
        for seed in (0, 1)
    ]
    shares = gathered(wanted, [0.9, 0.4, 0.5, 0.5, 0.1, 0.4])
    assert list(rows(shares))[2:] == ["| chat, 1 pod | 0.60 | 0.50 | 0.20 |"]
