"""lmetric-scorer: new prefill tokens times the batch, worked out by hand."""

import pytest

from epp.policy.attribute_sources import EndpointLoad, PrefixMatch
from epp.policy.peers.lmetric import LMetricScorer
from tests.policy.peers.desk import Desk, tokens
from tests.policy.started import Told, started
from tests.strategies import candidate, request


@pytest.mark.parametrize(
    ("cached", "under_way", "scores"),
    [
        # 100 * 5 = 500, 1000 * 1 = 1000, 400 * 2 = 800: the best cache wins though it is busiest.
        ((900, 0, 600), (4, 0, 1), [1, 0, 0.4]),
        # 100 * 12 = 1200, 1000 * 1 = 1000, 400 * 2 = 800: it has become too busy.
        ((900, 0, 600), (11, 0, 1), [0, 0.5, 1]),
        # 1000 * 3, 1000 * 1, 1000 * 2: of equal caches the least busy one.
        ((0, 0, 0), (2, 0, 1), [0, 1, 0.5]),
        # 100, 1000, 500 times 1: of idle ones the best cache.
        ((900, 0, 500), (0, 0, 0), [1, 0, 5 / 9]),
        # All of it is cached everywhere: 1 * 3, 1 * 1, 1 * 2, by the batch.
        ((1000, 1000, 1000), (2, 0, 1), [0, 1, 0.5]),
        ((0, 0, 0), (7, 7, 7), [1, 1, 1]),
    ],
)
def test_the_smallest_product_of_new_tokens_and_batch_wins(cached, under_way, scores):
    found = [
        candidate(name, prompt_tokens=1000, cached_tokens=tokens, requests=requests)
        for name, tokens, requests in zip("abc", cached, under_way, strict=True)
    ]
    scorer = started(LMetricScorer())
    assert scorer.score(request(), found) == pytest.approx(scores)


def test_a_request_without_a_prompt_goes_where_the_batch_is_smallest():
    found = [candidate(name, requests=count) for name, count in zip("abc", (4, 0, 1), strict=True)]
    assert started(LMetricScorer()).score(request(), found) == [0, 1, 0.75]  # 5, 1, 2


def test_named_producers_are_asked():
    """300 * 2 = 600 and 50 * 4 = 200, whatever the candidates say themselves."""
    scorer = started(
        LMetricScorer("precise", "ledger"),
        precise=Told({"a": PrefixMatch(0, 300), "b": PrefixMatch(250, 300)}),
        ledger=Told({"a": EndpointLoad(1, 0, 0), "b": EndpointLoad(3, 0, 0)}),
    )
    found = [candidate("a", prompt_tokens=9, requests=9), candidate("b", requests=99)]
    assert scorer.score(request(), found) == [0, 1]


def test_a_conversation_stays_until_its_endpoint_is_too_busy():
    """Of 177 tokens 160 are cached at pod-0: 17 a request there, 177 elsewhere."""
    at = Desk("lmetric-scorer")
    prompt = tokens(11)
    assert len(prompt) == 177
    assert at.routed(prompt[:161]) == 0
    at.load(9, 0, 0)
    assert at.decide(prompt).endpoint.name == "pod-0"  # 17 * 10 = 170
    at.load(1, 0, 0)
    assert at.decide(prompt).endpoint.name == "pod-1"  # 17 * 11 = 187
