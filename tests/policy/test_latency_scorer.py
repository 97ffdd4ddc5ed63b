"""`latency-scorer`: tables worked out by hand from llm-d-router's rule.

In the best group, places of |headroom| between the extremes become `int(100 * c) + 1` hundredths,
at most 1, for `c` of the weighted places with `most`, of 1 less them with `least`.
"""

from typing import Any

import pytest

from epp.model.endpoint import Load
from epp.policy.attribute_sources import LatencyPrediction, PrefixMatch
from epp.policy.scorers.latency import LatencyScorer
from tests.policy.started import Told, started
from tests.strategies import candidate, request

NAMES: dict[str, Any] = {"latency_prediction_info_producer_name": "told"}


def headrooms(*pairs, dispatched=1):
    return [
        None if pair is None else LatencyPrediction(0, 0, pair[0], pair[1], dispatched)
        for pair in pairs
    ]


@pytest.mark.parametrize(
    ("parameters", "predictions", "expected"),
    [
        # TTFT places 0, 0.5, 1; TPOT all equal, so that TTFT has all the weight: 1 - c
        ({}, headrooms((100, 5), (200, 5), (300, 5)), [1, 0.51, 0.01]),
        ({"headroom_selection_strategy": "most"}, headrooms((100, 5), (200, 5)), [0.01, 1]),
        ({"headroom_selection_strategy": ""}, headrooms((100, 5), (200, 5)), [1, 0.01]),
        # both differ: c = 0.5 * 0 + 0.5 * 1, 0.5 * 1 + 0.5 * 0
        ({"ttft_weight": 1, "tpot_weight": 1}, headrooms((100, 9), (200, 5)), [0.51, 0.51]),
        ({"ttft_weight": 3, "tpot_weight": 1}, headrooms((100, 9), (200, 5)), [0.76, 0.26]),
        ({"ttft_weight": 0, "tpot_weight": 0}, headrooms((100, 9), (200, 5)), [1, 0.01]),
        ({}, headrooms((7, 7), (7, 7)), [0.51, 0.51]),  # no difference: c = 0.5
        ({}, headrooms((100, 1)), [0.51]),
        # late ones get nothing while others are in time; unknown ones are in time, with 0
        ({}, headrooms((-1, 9), (100, 5), (300, 5)), [0, 1, 0.01]),
        ({}, headrooms(None, (100, 0), (-1, -1)), [1, 0.01, 0]),
        # all are late: TPOT alone first, then TTFT alone, then both; the least late scores most,
        # even with `most`
        ({}, headrooms((5, -10), (5, -30), (-5, 5), (-5, -5)), [1, 0.01, 0, 0]),
        (
            {"headroom_selection_strategy": "most"},
            headrooms((-100, 5), (-300, 5), (-1, -1)),
            [1, 0.01, 0],
        ),
        ({}, headrooms((-1, -1), (-2, -2)), [1, 0.01]),
        # of the late ones those that are idle, if there are
        (
            {},
            [*headrooms((5, -10)), *headrooms((-100, -9), (-300, -9), dispatched=0)],
            [0, 1, 0.01],
        ),
    ],
)
def test_headrooms(parameters, predictions, expected):
    names = [f"pod-{number}" for number in range(len(predictions))]
    told = Told(dict(zip(names, predictions, strict=True)))
    scorer = started(LatencyScorer(**parameters, **NAMES), told=told)
    assert scorer.score(request(), [candidate(name) for name in names]) == pytest.approx(expected)


LOADS = [Load(waiting=0, kv_usage=0.5), Load(waiting=2, kv_usage=0.1), Load(waiting=4, kv_usage=1)]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # (1 - usage) + (4 - waiting) / 4 + match, each a third: (0.5 + 1 + 0) / 3,
        # (0.9 + 0.5 + 0.25) / 3, (0 + 0 + 1) / 3, to hundredths
        ((1, 1, 1), [0.5, 0.55, 0.33]),
        ((2, 1, 1), [0.5, 0.64, 0.25]),  # (2 * 0.9 + 0.5 + 0.25) / 4 = 0.6375
        ((0, 3, 0), [1, 0.5, 0]),
        ((0, 0, 0), [0.5, 0.9, 0]),
        ((-1, 0, 0), [0.5, 0.9, 0]),
    ],
)
def test_without_predictions(weights, expected):
    kv, queue, prefix = weights
    matches = Told({"b": PrefixMatch(1, 4), "c": PrefixMatch(4, 4)}, PrefixMatch(0, 4))
    scorer = started(
        LatencyScorer(
            composite_kv_weight=kv,
            composite_queue_weight=queue,
            composite_prefix_weight=prefix,
            prefix_match_info_producer_name="matches",
        ),
        matches=matches,
    )
    asked = [candidate(name, load=load) for name, load in zip("abc", LOADS, strict=True)]
    assert scorer.score(request(), asked) == pytest.approx(expected)


def test_without_any_queue_all_have_room():
    asked = [candidate(load=Load(kv_usage=0.5)), candidate(load=Load(kv_usage=1))]
    assert started(LatencyScorer()).score(request(), asked) == [0.5, 0.33]
