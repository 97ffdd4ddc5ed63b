"""A pod that joins while a run goes on, with and without a window before it gets its share."""

import pytest

from bench.study.joining import JOINS, Joining, policy
from epp.replay.plan import PodPlan, RunPlan
from epp.replay.traffic.calls import Call, Run, Trace


def share_of_the_new_pod(window, since, until):
    """Play strangers that come ten a second; return the new pod's share of them."""
    times = [JOINS + number / 10 for number in range(10 * since, 10 * until)]
    calls = [
        Call(at=at, prompt=[Run(number, 4_000)], response=[Run(-number, 4)], session=number)
        for number, at in enumerate(times, 1)
    ]
    plan = RunPlan(policy=policy(window), pods=[PodPlan(), PodPlan()])
    outcomes = Joining(Trace(name="test", calls=calls), plan).run().outcomes
    return [each.endpoint for each in outcomes].count(1) / len(outcomes)


@pytest.mark.parametrize(
    ("window", "since", "until", "least", "most"),
    [(0, -10, 0, 0, 0), (0, 0, 10, 0.4, 0.6), (30, 0, 6, 0.01, 0.2), (30, 30, 40, 0.4, 0.6)],
    ids=["not there", "no window", "while it is new", "when it is not any more"],
)
def test_its_share_grows(window, since, until, least, most):
    assert least <= share_of_the_new_pod(window, since, until) <= most
