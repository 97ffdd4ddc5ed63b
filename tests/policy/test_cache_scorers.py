"""Scorers by what endpoints hold: tables worked out by hand from llm-d-router's rules."""

from typing import Any

import pytest

from epp.config.catalogue import PLUGINS
from epp.config.prefix_caches import PrecisePrefixCacheScorer
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.policy.attribute_sources import FROM_FLEET, PrefixMatch
from epp.policy.scorers.caches import (
    MultimodalCacheScorer,
    NoHitLruScorer,
    PrefixCacheScorer,
)
from tests.policy.started import Context, Told, started
from tests.strategies import candidate, request


def pods(*names, **more):
    return [candidate(name, prompt_tokens=100, **more) for name in names]


def test_a_named_producer_of_matches_is_asked():
    told = Told({"a": PrefixMatch(25, 100), "b": PrefixMatch(0, 0), "c": PrefixMatch(100, 100)})
    parameters: dict[str, Any] = {
        "prefix_match_info_producer_name": "mine",
        "match_length_weight": 0.5,
        "match_length_scale_tokens": 50,
    }
    for kind in ("prefix-cache-scorer", "multicluster-prefix-cache-scorer"):
        scorer = started(PLUGINS[kind](**parameters), mine=told)
        # half of 25/100 and half of (25/50)^2; nothing; half of 1 and half of min(1, 100/50)^2
        assert scorer.score(request(), pods("a", "b", "c")) == [0.25, 0, 1]


def test_the_fleets_index_is_the_default():
    scorer = started(PrefixCacheScorer())
    assert scorer == PrefixCacheScorer()
    assert started(PrecisePrefixCacheScorer()) == PrefixCacheScorer()


@pytest.mark.parametrize(
    ("columns", "ratio"),
    [
        ({"cached_tokens": 96, "matched_blocks": 5, "total_blocks": 6}, 0.96),
        ({"cached_tokens": 96, "matched_blocks": 6, "total_blocks": 6}, 1),
        ({"cached_tokens": 48, "matched_blocks": 6, "total_blocks": 6, "trust": 0.5}, 0.48),
        ({"cached_tokens": 0}, 0),
    ],
)
def test_a_prompt_is_whole_where_all_its_full_blocks_are_cached(columns, ratio):
    (found,) = FROM_FLEET.prefix_matches(request(), pods("a", **columns))
    assert found.ratio == ratio


def test_media():
    told = Told({"a": PrefixMatch(300, 400), "b": PrefixMatch(0, 400)})
    scorer = started(MultimodalCacheScorer(producer_name="mine"), mine=told)
    assert scorer.score(request(), pods("a", "b")) == [0.75, 0]


class Lru:
    """A started `no-hit-lru-scorer`, and what it is notified of."""

    def __init__(self, **parameters):
        self.context = Context()
        self.scorer = NoHitLruScorer(**parameters).start(self.context)

    def score(self, candidates, identity="r"):
        return self.scorer.score(request(identity), candidates)

    def send(self, name, identity="r", prefill=""):
        stages = (decision(prefill, "prefill"),) if prefill else ()
        self.scorer.committed(request(identity), decision(name, "decode", stages), 1.0)


def decision(name, profile, stages=()):
    return Decision(endpoints=(candidate(name).endpoint,), profile=profile, stages=stages)


def test_cold_requests_go_where_none_went_for_the_longest():
    lru, asked = Lru(), pods("a", "b", "c")
    assert lru.score(asked) == [1, 0.5, 0]  # none was used: 1 - i/2 in their order
    lru.send("b")
    assert lru.score(asked) == [1, 0, 0.5]  # a and c first, then b: 1 - (2 + 0)/2
    lru.send("a")
    assert lru.score(asked) == [0, 0.5, 1]  # c, then b (1 - (1 + 0)/2), then a (1 - (1 + 1)/2)
    lru.send("b")
    assert lru.score(asked) == [0.5, 0, 1]
    assert lru.score(pods("a")) == [1]


def test_a_warm_request_changes_nothing():
    lru = Lru()
    warm = pods("a", "b", cached_tokens=16)
    assert lru.score(warm) == [0.5, 0.5]
    lru.send("a")
    assert lru.score(pods("a", "b")) == [1, 0]
    lru.score(warm, "r")  # cold when it was scored first, warm when it was last
    lru.send("a", "r")
    lru.send("a", "never scored")
    assert lru.score(pods("a", "b")) == [1, 0]


def test_where_a_cold_prompt_is_computed_counts_too():
    lru = Lru()
    lru.score(pods("p", "d", "x"))
    lru.send("d", prefill="p")
    # x was never used; d was before p: 1 - (1 + 1)/2, 1 - (1 + 0)/2, 1
    assert lru.score(pods("p", "d", "x")) == [0, 0.5, 1]


def test_endpoints_that_are_gone_or_beyond_the_size_are_forgotten():
    lru = Lru(lru_size=2)
    for number, name in enumerate("abc"):
        lru.score(pods("a", "b", "c"), f"r{number}")
        lru.send(name, f"r{number}")
    assert lru.score(pods("a", "b", "c")) == [1, 0.5, 0]  # a is beyond the two
    assert lru.score(pods("a", "d", "b", "c"))[:2] == [1, 1 - 1 / 3]  # as new as d
    assert lru.score(pods("c", "a")) == [0, 1]  # and b is not asked about
    (listener,) = lru.context.listeners
    listener(EndpointRemoved(EndpointId("default/b")), 1.0, False)
    assert lru.score(pods("b", "c")) == [1, 0]
