"""KV events while the render endpoint is down: prompts are tokens, then text, then tokens."""

import pytest

from tests.model.simulated_fleet import SimulatedFleet

REQUESTS = 500
PHASES = (True, False, True)
"""Whether prompts come as token ids, by phase."""


def played(*, events, seed):
    fleet = SimulatedFleet(events=events, seed=seed, alive=28)
    measured = [fleet.play(REQUESTS, exact=exact) for exact in PHASES]
    fleet.fleet.check_invariants()
    return measured


@pytest.mark.parametrize("seed", [1, 3])
def test_events_cost_text_nothing_and_know_its_tokens_afterwards(seed):
    with_events, without = played(events=True, seed=seed), played(events=False, seed=seed)
    _, text, tokens = with_events
    assert text.share >= without[1].share - 0.01
    assert text.error <= without[1].error + 0.005
    # Without events nothing is known of the tokens of text; with them, all but what is on its way.
    assert tokens.share >= without[2].share - 0.01
    assert tokens.error <= without[2].error / 2
