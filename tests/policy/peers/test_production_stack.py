"""production-stack's routing logics, worked out by hand from its routing_logic.py."""

from functools import partial

import pytest
from xxhash import xxh64_intdigest

from epp.policy.attribute_sources import EndpointLoad, PrefixMatch
from epp.policy.peers.hash_ring import HashRing
from epp.policy.peers.production_stack import ProductionStackLoadAwareScorer
from tests.policy.peers.desk import BLOCK, Desk, holding, tokens
from tests.policy.started import Told, started
from tests.strategies import candidate, request

PREFIX = "production-stack-prefix-aware-scorer"
SESSION = "production-stack-session-scorer"
PROMPT = tokens(8)


desk = partial(holding, PREFIX, PROMPT)


@pytest.mark.parametrize(
    ("blocks", "loads", "chosen"),
    [
        ((0, 0, 0), (9, 0, 0), [0, 1, 2]),  # any, whatever the load
        ((2, 0, 0), (9, 0, 0), [0]),
        ((2, 4, 4), (0, 9, 0), [1, 2]),
        ((8, 8, 8), (0, 0, 0), [0, 1, 2]),
    ],
)
def test_any_of_those_that_have_the_longest_prefix(blocks, loads, chosen):
    at = desk(*blocks)
    at.load(*loads)
    assert at.best(PROMPT) == chosen


def test_a_short_match_goes_where_the_fewest_requests_went_in_a_minute():
    """Of a token's 4 characters 2 blocks are 128, 3 are 192."""
    at = Desk(PREFIX, 3, prefixMinMatchLength=129)
    at.hold(PROMPT, 2, 1, 1)  # a request each
    at.hold(tokens(1, 5000), 1, 0, 1)
    assert at.best(PROMPT) == [1]
    at.hold(PROMPT, 0, 3)
    assert at.best(PROMPT) == [1]  # 3 blocks by now, though 2 requests
    assert at.best(tokens(4, 9000)) == [0, 1, 2]  # unknown: two requests each
    at.rig.now += 61
    at.hold(tokens(1, 7000), 0, 1, 1)
    assert at.best(tokens(4, 9000)) == [0]
    assert at.best() == [0]
    at.remove(2)
    at.rig.add("pod-2", "10.0.0.3")
    assert at.best() == [0, 2]


def test_the_trie_is_bounded_and_keeps_beginnings():
    at = desk(8, 0, maxBlocks=4)
    assert at.best(PROMPT[: 4 * BLOCK]) == [0]
    at.hold(tokens(3, 5000), 0, 3)
    assert at.best(PROMPT[: 2 * BLOCK]) == [0]
    assert len(at.scorer._trie) == 4


def scores_of(shares, loads, **parameters):
    found = [
        candidate(name, prompt_tokens=100, cached_tokens=int(100 * share), requests=count)
        for name, share, count in zip("abc", shares, loads, strict=True)
    ]
    return started(ProductionStackLoadAwareScorer(**parameters)).score(request(), found)


@pytest.mark.parametrize(
    ("shares", "loads", "parameters", "scores"),
    [
        # The mean is 3: 0.8 - 1 = -0.2, 0.5 + 1/3 = 25/30, 0 + 2/3 = 20/30, over 31/30.
        ((0.8, 0.5, 0), (6, 2, 1), {}, [0, 1, 26 / 31]),
        # Half of it: 0.3, 2/3, 1/3, over 11/30.
        ((0.8, 0.5, 0), (6, 2, 1), {"beta": 0.5}, [0, 1, 1 / 11]),
        ((0.8, 0.5, 0), (6, 2, 1), {"beta": 0}, [1, 0.625, 0]),
        # The mean of a third counts as 1: 0.8 - 2/3 = 2/15, 1/3, 1/3.
        ((0.8, 0, 0), (1, 0, 0), {}, [0, 1, 1]),
        ((0.8, 0, 0), (0, 0, 0), {}, [1, 0, 0]),
        ((0, 0, 0), (4, 4, 4), {}, [1, 1, 1]),
    ],
)
def test_shares_less_relative_loads(shares, loads, parameters, scores):
    assert scores_of(shares, loads, **parameters) == pytest.approx(scores)


def test_named_producers_are_asked():
    scorer = started(
        ProductionStackLoadAwareScorer(1.0, "precise", "ledger"),
        precise=Told({"a": PrefixMatch(100, 100)}, PrefixMatch(0, 100)),
        ledger=Told({"a": EndpointLoad(3, 0, 0)}, EndpointLoad(1, 0, 0)),
    )
    # The mean is 2: 1 - 1/2 and 0 + 1/2.
    assert scorer.score(request(), [candidate("a"), candidate("b")]) == [1, 1]
    assert scorer.score(request(), []) == []


def test_a_session_goes_where_it_hashes_to():
    at = Desk(SESSION, 4, sessionKey=" X-User-Id ")
    ring = HashRing(at.rig.fleet.subscribe, 160)
    ring.add(each.id for each in at.rig.fleet.endpoints)
    for session in ("ann", "bob", "cleo", "dan"):
        (first, second, *_) = ring.walk(xxh64_intdigest(session.encode()))
        asked = {"headers": {"x-user-id": session}}
        assert at.best(**asked) == [int(first[-1])]
        others = tuple(f"10.0.0.{pod + 1}:8000" for pod in range(4) if str(pod) != first[-1])
        assert at.best(subset=others, **asked) == [int(second[-1])]
    at.remove(3)
    assert len([*at.scorer._ring.walk(0)]) == 3
    assert 3 not in at.best(headers={"x-user-id": "ann"})


def test_without_a_session_the_fewest_requests_in_a_minute_count():
    at = Desk(SESSION, 3, sessionKey="x-user-id")
    at.hold(PROMPT, 1, 0, 1)
    assert at.best() == at.best(headers={"x-user-id": ""}) == [1]
