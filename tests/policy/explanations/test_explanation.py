"""What is said of a decision: each candidate, every term, and by how much it was won."""

import math

import msgspec
import pytest

from epp.model.candidate import COST_TERMS
from epp.model.decision import Decision, Score
from epp.policy.choice import ttft_costs
from epp.policy.explanations.explanation import Explanation, explain
from tests.policy.explanations.decisions import decided
from tests.strategies import candidate


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
        assert each.terms_ms.keys() == set(COST_TERMS)
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


def test_a_score_that_is_not_finite_is_not_known_and_is_read_as_it_was_written():
    found = [candidate("a"), candidate("b"), candidate("c")]
    decision = Decision(
        endpoints=(found[0].endpoint,),
        candidates=found,
        scores=[Score("odd", 1.0, [0.5, math.nan, -math.inf], out_of_range=True)],
        totals=[0.5, 0.0, 0.0],
    )
    said = explain(decision, "score", 3)
    assert [each.scores for each in said.candidates] == [{"odd": 0.5}, {"odd": None}, {"odd": None}]
    assert [each.score for each in said.candidates] == [0.5, 0.0, 0.0]
    assert msgspec.json.decode(msgspec.json.encode(said), type=Explanation) == said
