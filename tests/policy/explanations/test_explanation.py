"""What is said of a decision: each candidate, every term, and by how much it was won."""

import pytest

from epp.policy.choice import ttft_costs
from epp.policy.explanations.explanation import explain
from epp.policy.explanations.ranking import TERMS
from tests.policy.explanations.decisions import decided


def explained(policy="least-ttft", most=16, **more):
    decision, found = decided(policy, **more)
    return decision, explain(decision, found[decision.profile], most)


@pytest.mark.parametrize("policy", ["least-ttft", "linear"])
def test_the_winner_leads_by_its_margin(policy):
    decision, said = explained(policy, loads=(0, 2))
    best, second = said.candidates[:2]
    assert said.winner == decision.endpoint.id == best.endpoint
    assert said.runner_up == second.endpoint
    assert said.margin is not None
    if policy == "linear":
        assert said.margin == pytest.approx(best.score - second.score)
        assert best.scores.keys() == {each.plugin for each in decision.scores}
    else:
        assert said.margin == pytest.approx(second.cost_ms - best.cost_ms, abs=2e-3)
        assert best.score is None


def test_a_cost_is_its_terms_by_their_weights():
    decision, said = explained(loads=(0, 1, 2))
    costs = dict(
        zip(
            (each.endpoint.id for each in decision.candidates),
            ttft_costs(decision.candidates),
            strict=True,
        )
    )
    for each in said.candidates:
        assert each.terms_ms.keys() == set(TERMS)
        summed = sum(said.weights.get(name, 1.0) * value for name, value in each.terms_ms.items())
        assert each.cost_ms == pytest.approx(1e3 * costs[each.endpoint], abs=1e-3)
        assert each.cost_ms == pytest.approx(summed, rel=1e-2)


def test_of_many_candidates_the_best_are_shown():
    _, said = explained(pods=40, most=3)
    assert (len(said.candidates), said.passed, said.considered) == (3, 40, 40)


def test_a_picker_that_compares_something_else_has_no_margin():
    _, said = explained("random")
    assert (said.measure, said.margin) == ("other", None)


def test_an_only_candidate_has_no_runner_up():
    _, said = explained(pods=1)
    assert (said.runner_up, said.margin) == (None, None)
