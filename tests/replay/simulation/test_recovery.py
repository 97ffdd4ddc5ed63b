"""What a picker believes of speeds, minutes after all endpoints have changed, or it has."""

from statistics import geometric_mean

import pytest

from epp.model.events import EndpointUpserted, Listed
from epp.model.learning.prefill import PrefillModel
from epp.model.pods.outlier_settings import OutlierSettings
from epp.replay.plan import Fault, FaultKind, PodPlan, RunPlan, Traffic
from epp.replay.policies import NAMED
from epp.replay.simulation.picker import SimulatedPicker
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import read_traffic

PODS, RATE = 4, 7.0
AT, LATER = 60.0, 180.0
NEAR = 1.3
PROMPTS = ((300, 2000), (1500, 3000), (5000, 0))
"""Uncached and cached tokens."""


class Believed(Simulation):
    """`interactive-chat` at several pods; `fault`, if any, happens to all of them."""

    def __init__(self, *, at=AT, **fault):
        end = at + LATER
        source = f"interactive-chat:sessions={int(RATE * end / 3)},rate={RATE}"
        super().__init__(
            read_traffic(Traffic(source=source, seed=1)),
            RunPlan(
                policy=NAMED["least-ttft"],
                pods=(PodPlan(),) * PODS,
                faults=tuple(Fault(pod=pod, at=at, **fault) for pod in range(PODS)),
                duration=end + 1,
            ),
        )
        self.ratios = []
        self.clock.at(end, self.look)

    def look(self):
        """Compare what prompts are believed to take with what they take at speed 1."""
        for pod in self.pickers[0].fleet.pods.values():
            ratios = [
                pod.speed.prefill.seconds(*each) / PrefillModel().seconds(*each) for each in PROMPTS
            ]
            self.ratios.append(pod.pace.prefill_slowness.value * geometric_mean(ratios))

    def restart(self):
        """Put a picker that knows nothing into the place of the one that there is."""
        self.pickers[:] = [SimulatedPicker(NAMED["least-ttft"], 2, self.clock, OutlierSettings())]
        for pod in self.pods:
            self.pickers[0].report(EndpointUpserted(pod.endpoint))
        self.pickers[0].report(Listed())

    def is_near(self, truth):
        self.run()
        assert len(self.ratios) == PODS
        return all(1 / NEAR < each / truth < NEAR for each in self.ratios)


@pytest.mark.parametrize("factor", [1 / 3, 3.0])
def test_another_model_behind_the_pool(factor):
    assert Believed(kind=FaultKind.SLOW, factor=factor).is_near(1 / factor)


@pytest.mark.parametrize("after", [0.0, 5.0])
def test_a_restart_while_all_endpoints_stall(after):
    run = Believed(kind=FaultKind.STALL, seconds=10.0)
    run.clock.at(AT + after, run.restart)
    assert run.is_near(1.0)


def test_engines_that_compile_at_first():
    assert Believed(kind=FaultKind.SLOW, factor=0.1, at=0.0, seconds=20.0).is_near(1.0)
