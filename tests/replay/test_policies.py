"""The policies that replay knows by name: each is described, and answers what it is asked."""

from pathlib import Path

import pytest

from epp.config.file import POLICIES
from epp.replay.engines.contract import Limits
from epp.replay.plan import PodPlan, RunPlan
from epp.replay.policies import NAMED
from epp.replay.simulation.outcome import CallStatus
from epp.replay.simulation.run import Simulation
from epp.replay.traffic.calls import Call, Run, Trace, ordered

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()


@pytest.mark.parametrize("name", NAMED)
def test_every_policy_answers_a_burst_of_conversations(name):
    first = [
        Call(
            at=0.1 * number,
            prompt=(Run(1, 500), Run(10_000 * (number + 1), 300)),
            response=(Run(900_000 + 100 * number, 20),),
            session=number,
        )
        for number in range(12)
    ]
    trace = Trace(name="test", calls=ordered(first))
    played = Simulation(trace, RunPlan(policy=NAMED[name], pods=[PodPlan()] * 3)).run()
    assert [each.status for each in played.outcomes] == [CallStatus.SERVED] * len(first)


@pytest.mark.parametrize("name", NAMED)
def test_what_has_no_room_waits_in_the_picker_with_those_that_epp_serve_has(name):
    burst = [
        Call(at=0.0, prompt=(Run(n, 500),), response=(Run(100 + n, 200),), session=n)
        for n in range(30)
    ]
    pod = PodPlan(limits=Limits(num_gpu_blocks=300))  # for six of them
    trace = Trace(name="test", calls=burst)
    played = Simulation(trace, RunPlan(policy=NAMED[name], pods=[pod])).run()
    assert {each.status for each in played.outcomes} == {CallStatus.SERVED}
    waited = max(sample.waiting for sample in played.samples)
    assert (waited < len(burst) / 2) is (name in POLICIES)


@pytest.mark.parametrize("name", NAMED)
def test_every_policy_has_a_row_on_the_page(name):
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert [row for row in rows if f"`{name}`" in row.split("|")[1]]
