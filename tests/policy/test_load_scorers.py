"""Scorers by load: tables worked out by hand from llm-d-router's rules."""

from typing import Any

import msgspec
import pytest

from epp.config.catalogue import PLUGINS
from epp.model.endpoint import Load
from epp.policy.attribute_sources import EndpointLoad
from epp.policy.scorers.caches import PrefixCacheScorer
from epp.policy.scorers.load import (
    ActiveRequestScorer,
    KvCacheUtilizationScorer,
    LeastTtftScorer,
    LoadAwareScorer,
    QueueScorer,
    RunningRequestsScorer,
    TokenLoadScorer,
)
from tests.model.rig import LONG, Rig
from tests.policy.started import Told, started
from tests.strategies import SteadyLoad, candidate, request


def scores(struct, candidates, **named):
    return started(struct, **named).score(request(), candidates)


@pytest.mark.parametrize(
    ("running", "expected"),
    [([4], [1]), ([2, 2], [1, 1]), ([0, 5, 20], [1, 15 / 20, 0]), ([10, 30, 50], [1, 0.5, 0])],
)
def test_running_requests(running, expected):
    asked = [candidate(load=Load(running=each)) for each in running]
    assert scores(RunningRequestsScorer(), asked) == expected


def test_load_is_that_of_the_moment():
    now = SteadyLoad(waiting=9, running=9, kv_usage=0.9)
    asked = [candidate(load=Load(), current=now), candidate(load=Load(waiting=3, running=3))]
    assert scores(QueueScorer(), asked) == [0, 1]
    assert scores(RunningRequestsScorer(), asked) == [0, 1]
    assert scores(LoadAwareScorer(threshold=10), asked) == [
        pytest.approx(0.5 * (1 - 9 / 10)),
        pytest.approx(0.5 * (1 - 3 / 10)),
    ]


@pytest.mark.parametrize(
    "scorer",
    [
        QueueScorer(),
        RunningRequestsScorer(),
        KvCacheUtilizationScorer(),
        LoadAwareScorer(threshold=10),
        LeastTtftScorer(),
        PrefixCacheScorer(),
        PrefixCacheScorer(match_length_weight=0.5),
    ],
    ids=repr,
)
def test_columns_score_as_the_candidates_that_they_are(scorer):
    rig = Rig(3)
    rig.report("pod-1", waiting=4, running=7, kv_usage=0.4)
    rig.report("pod-2", waiting=2, running=9, kv_usage=0.7)
    rig.serve("pod-0", "r0", LONG)
    rig.send("pod-2", "r1", LONG)
    found = rig.fleet.candidates(rig.quote("r2", LONG), rig.now)
    assert scores(scorer, found) == scores(scorer, list(found))


@pytest.mark.parametrize(
    ("threshold", "waiting", "expected"),
    [
        (128, 0, 0.5),
        (128, 32, 0.5 * (1 - 32 / 128)),
        (128, 128, 0),
        (128, 500, 0),
        (10, 5, 0.25),
        (0, 64, 0.25),  # 0 and less: 128
        (-3, 64, 0.25),
    ],
)
def test_load_aware(threshold, waiting, expected):
    asked = [candidate(load=Load(waiting=waiting))]
    assert scores(LoadAwareScorer(threshold=threshold), asked) == [expected]


@pytest.mark.parametrize(
    ("parameters", "requests", "expected"),
    [
        ({}, [0, 0], [1, 1]),
        ({}, [3, 3], [0, 0]),  # busy, and none is less so than the busiest
        ({}, [0, 2, 8], [1, 6 / 8, 0]),
        ({"idle_threshold": 2}, [1, 2, 4, 8], [1, 1, 0.5, 0]),
        ({"max_busy_score": 0.5}, [0, 2, 8], [1, 6 / 8 * 0.5, 0]),
        ({"max_busy_score": 0}, [0, 2, 8], [1, 0, 0]),
        ({"idle_threshold": -1}, [0, 4], [1, 0]),
        ({"request_timeout": "soon"}, [0, 4], [1, 0]),  # not read, as in llm-d-router
    ],
)
def test_active_requests(parameters, requests, expected):
    asked = [candidate(requests=each) for each in requests]
    assert scores(ActiveRequestScorer(**parameters), asked) == expected


@pytest.mark.parametrize(
    ("threshold", "in_flight", "cached", "expected"),
    [
        (1000, 0, 100, 1),  # all of 100 tokens are cached, and none is in flight
        (1000, 0, 0, 1 - 100 / 1000),
        (1000, 400, 50, 1 - 450 / 1000),
        (1000, 950, 0, 0),
        (1000, 5000, 0, 0),
        (0, 4_194_204 - 2_097_152, 0, 0.5),  # 0 and less: 4194304, half of it with the prompt's
    ],
)
def test_token_load(threshold, in_flight, cached, expected):
    asked = [candidate(prompt_tokens=100, cached_tokens=cached, in_flight_tokens=in_flight)]
    found = scores(TokenLoadScorer(queue_threshold_tokens=threshold), asked)
    assert found == [pytest.approx(expected)]


def test_a_named_producer_is_asked():
    told = Told({"a": EndpointLoad(2, 300, 0), "b": EndpointLoad(4, 100, 100)})
    asked = [candidate("a", requests=9), candidate("b", requests=0)]
    named: dict[str, Any] = {"in_flight_load_producer_name": "mine"}
    assert scores(ActiveRequestScorer(**named), asked, mine=told) == [0.5, 0]
    by_tokens = TokenLoadScorer(queue_threshold_tokens=400, **named)
    assert scores(by_tokens, asked, mine=told) == [0.25, 0.5]


@pytest.mark.parametrize(
    ("kind", "parameters", "said"),
    [
        ("active-request-scorer", {"maxBusyScore": 1.5}, "`maxBusyScore` is 1.5, above 1"),
        ("active-request-scorer", {"maxBusyScore": -1}, "`maxBusyScore`"),
        ("prefix-cache-scorer", {"matchLengthWeight": 1.1}, "`matchLengthWeight` is 1.1"),
        (
            "prefix-cache-scorer",
            {"matchLengthWeight": 0.5, "matchLengthScaleTokens": 0},
            "`matchLengthScaleTokens` must be above 0",
        ),
        ("load-aware-scorer", {"threshold": "128"}, "Expected `int`"),
        (
            "latency-scorer",
            {"ttftWeight": -1},
            "`ttftWeight` is -1, below 0",
        ),
        ("latency-scorer", {"headroomSelectionStrategy": "best"}, "Invalid enum value 'best'"),
        ("header-label-affinity-scorer", {"headerName": "a", "labelKey": ""}, "are needed"),
        ("context-length-aware", {"label": ""}, "`label` is empty"),
        ("endpoint-attribute-weight-scorer", {"attributeKey": "a", "weights": {}}, "are needed"),
        (
            "endpoint-attribute-weight-scorer",
            {"attributeKey": "a", "weights": {"x": 0}},
            "the weight of `x` is 0",
        ),
    ],
)
def test_what_is_out_of_range_is_an_error(kind, parameters, said):
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(parameters, PLUGINS[kind])
