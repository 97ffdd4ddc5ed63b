"""Candidates of a decision in order: what a profile compares, and the winner first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config.file import load
from epp.policy.choice import ttft_costs
from epp.policy.explanations.ranking import ranked, weight_of, winner_position
from epp.policy.scheduler import Scheduler
from tests.model.rig import Rig
from tests.policy.explanations.decisions import decided
from tests.policy.routing import routed
from tests.strategies import request, text

ROLES = """
plugins:
- {type: label-selector-filter, parameters: {matchLabels: {zone: a}}}
- {type: least-ttft-picker}
"""
MEASURES = {"least-ttft": "cost", "linear": "score", "random": "other", "round-robin": "other"}


@pytest.mark.parametrize("policy", MEASURES)
def test_a_profile_compares_what_its_picker_reads(policy):
    _, found = decided(policy)
    assert found == {"default": MEASURES[policy]}


@given(loads=st.lists(st.integers(0, 3), unique=True, max_size=4), most=st.integers(1, 5))
@pytest.mark.parametrize("policy", MEASURES)
def test_the_winner_is_first_and_the_others_by_what_is_compared(policy, loads, most):
    decision, found = decided(policy, loads=loads)
    measure = found["default"]
    costs = ttft_costs(decision.candidates)
    positions = ranked(decision, measure, most, costs)
    winner = winner_position(decision)
    assert decision.candidates[winner].endpoint == decision.endpoint
    assert positions[0] == winner
    assert len(set(positions)) == len(positions) == min(most, 4)
    values = [-total for total in decision.totals] if measure == "score" else costs
    others = [values[at] for at in positions[1:]]
    assert others == sorted(others)
    if measure != "other":
        assert values[winner] == min(values)


def test_a_decision_knows_how_many_endpoints_its_filters_saw():
    rig = Rig(2)
    rig.add("near", "10.0.0.9", labels={"zone": "a"})
    scheduler = Scheduler(rig.fleet, load(ROLES).scheduling, lambda _: 0)
    decision = routed(scheduler, request("r", text(300)), rig.now)
    assert (len(decision.considered), len(decision.candidates)) == (3, 1)


def test_what_is_kept_weighs_what_it_holds():
    small, large = decided(pods=2)[0], decided(pods=200)[0]
    assert weight_of(None) < weight_of(small) < weight_of(large)
