"""Scorers: formulas as tables, and properties of all of them."""

import pytest
from hypothesis import given

from epp.model.endpoint import Load
from epp.policy.pickers import LeastTtftPicker, MaxScorePicker
from epp.policy.plugins import PickContext
from epp.policy.scorers.caches import LoraAffinityScorer, PrefixCacheScorer
from epp.policy.scorers.load import (
    KvCacheUtilizationScorer,
    LeastTtftScorer,
    QueueScorer,
    lower_is_better,
)
from tests.strategies import candidate, candidates, request


@pytest.mark.parametrize(
    ("waiting", "scores"),
    [
        ([0], [1]),
        ([7], [1]),
        ([3, 3, 3], [1, 1, 1]),
        ([0, 10], [1, 0]),
        ([0, 5, 10], [1, 0.5, 0]),
        ([4, 2, 3, 6], [0.5, 1, 0.75, 0]),
    ],
)
def test_queue(waiting, scores):
    asked = [candidate(load=Load(waiting=each)) for each in waiting]
    assert QueueScorer().score(request(), asked) == scores


@pytest.mark.parametrize(("usage", "score"), [(0, 1), (0.25, 0.75), (1, 0), (1.5, 0), (-0.5, 1)])
def test_kv_cache_utilization(usage, score):
    asked = [candidate(load=Load(kv_usage=usage))]
    assert KvCacheUtilizationScorer().score(request(), asked) == [score]


@pytest.mark.parametrize(
    ("parameters", "cached", "prompt", "score"),
    [
        ({}, 0, 0, 0),
        ({}, 0, 100, 0),
        ({}, 25, 100, 0.25),
        ({}, 100, 100, 1),
        ({"match_length_weight": 1}, 4096, 100_000, 0.25),
        ({"match_length_weight": 1}, 8192, 100_000, 1),
        ({"match_length_weight": 1}, 90_000, 100_000, 1),
        ({"match_length_weight": 0.5}, 4096, 8192, 0.5 * 0.5 + 0.5 * 0.25),
        ({"match_length_weight": 1, "match_length_scale_tokens": 100}, 50, 1000, 0.25),
    ],
)
def test_prefix_cache(parameters, cached, prompt, score):
    asked = [candidate(cached_tokens=cached, prompt_tokens=prompt)]
    assert PrefixCacheScorer(**parameters).score(request(), asked) == [pytest.approx(score)]


@pytest.mark.parametrize(
    ("running", "waiting", "most", "score"),
    [
        (["mine"], [], 1, 1),
        (["mine"], ["mine"], 0, 1),
        ([], [], 1, 0.8),
        (["a"], ["b"], 3, 0.8),
        (["a"], ["mine"], 3, 0.8),
        (["a"], ["mine"], 2, 0.6),
        ([], ["mine"], 0, 0.6),
        (["a"], ["b"], 2, 0),
        ([], [], 0, 0),
    ],
)
def test_lora_affinity(running, waiting, most, score):
    load = Load(
        running_adapters=frozenset(running), waiting_adapters=frozenset(waiting), max_adapters=most
    )
    asked = request(target_model="mine")
    assert LoraAffinityScorer().score(asked, [candidate(load=load)]) == [score]


@pytest.mark.parametrize(
    ("costs", "scores"),
    [
        ([0.3], [1]),
        ([0.0], [1]),
        ([0.2, 0.2], [1, 1]),
        ([0.1, 0.2, 0.4], [1, 0.5, 0.25]),
        ([0.5, 0.0, 0.0], [0, 1, 1]),
        ([float("inf"), 1.0], [0, 1]),
        ([float("inf"), float("inf")], [1, 1]),
    ],
)
def test_the_score_of_a_first_token_is_how_much_sooner_it_could_come(costs, scores):
    asked = [candidate(queued_prefill_seconds=each) for each in costs]
    assert LeastTtftScorer().score(request(), asked) == scores


@given(asked=candidates())
def test_alone_the_scorer_of_first_tokens_picks_what_the_picker_picks(asked):
    context = PickContext(lambda _: 0, 0)
    totals = LeastTtftScorer().score(request(), asked)
    assert MaxScorePicker().pick(asked, totals, context) == LeastTtftPicker().pick(
        asked, [], context
    )


@pytest.mark.parametrize(
    ("values", "scores"),
    [
        ([2.0, 4.0, 3.0], [1.0, 0.0, 0.5]),
        ([7.0, 7.0], [1.0, 1.0]),
        ([-1.7e308, 1.7e308, 0.0], [1.0, 0.0, 0.5]),
        ([0.0, 5e-324], [1.0, 0.0]),
        ([], []),
    ],
)
def test_lower_is_better_whatever_the_distance(values, scores):
    assert lower_is_better(values) == scores
