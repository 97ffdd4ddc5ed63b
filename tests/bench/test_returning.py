"""What a policy does that knows which conversations are about to go on, and where."""

import pytest

from bench.study.returning import NOTHING, Addition, Returning
from epp.replay.plan import PodPlan, RunPlan
from epp.replay.policies import NAMED
from epp.replay.traffic.calls import Call, Run, Trace

PLAN = RunPlan(policy=NAMED["oracle"], pods=[PodPlan(), PodPlan()])


def conversation(new):
    """Two turns, of which the second has `new` tokens more, and a stranger between them."""
    opening, answer, stranger = Run(1, 1_000), Run(2, 10), Run(1, 800)
    return Trace(
        name="test",
        calls=[
            Call(at=0.0, prompt=[opening], response=[answer], session=0),
            Call(at=2.0, prompt=[stranger, Run(3, 100)], response=[Run(4, 10)], session=1),
            Call(
                at=2.5,
                prompt=[opening, answer, Run(5, new)],
                response=[Run(6, 10)],
                session=0,
                after=0,
            ),
        ],
    )


@pytest.mark.parametrize(
    ("addition", "new", "together"),
    [
        (NOTHING, 20_000, True),
        (Addition(1, 1), 20_000, False),
        (Addition(0.1, 1), 20_000, True),  # it comes later than that
        (Addition(1, 1), 10, True),  # it takes no time
    ],
)
def test_a_stranger_keeps_off_where_a_conversation_goes_on_soon(addition, new, together):
    first, stranger, second = Returning(conversation(new), PLAN, addition).run().outcomes
    assert (stranger.endpoint == first.endpoint) is together
    assert second.endpoint == first.endpoint
