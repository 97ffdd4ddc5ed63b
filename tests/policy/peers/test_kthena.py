"""kthena's scorers, worked out by hand from its plug-ins."""

from collections import OrderedDict

import msgspec
import pytest

from epp.model.endpoint import EndpointId, Load
from epp.model.events import EndpointRemoved
from epp.model.prompts.hashing import BlockHash
from epp.model.request import RequestId, Usage
from epp.model.request_events import Finished, FirstToken
from epp.policy.peers.kthena import KthenaLeastLatencyScorer, KthenaLeastRequestScorer
from tests.model.rig import Rig
from tests.policy.peers.desk import BLOCK, Desk, tokens
from tests.policy.started import Context, kept
from tests.strategies import candidate, endpoint, request

PREFIX = "kthena-prefix-cache-scorer"


@pytest.mark.parametrize(
    ("sent", "running", "scores"),
    [
        # 10 + 0, 5 + 100 * 1, 0: of 105 nothing, 95 and 105 are missing.
        ((10, 5, 0), (12, 4, 3), [0.90, 0, 1]),
        # 4, 3, 2: a quarter and a half, in hundredths; nothing waits.
        ((4, 3, 2), (4, 3, 2), [0, 0.25, 0.5]),
        ((3, 2, 1), (3, 2, 1), [0, 0.33, 0.66]),
        ((0, 0, 0), (7, 0, 0), [1, 1, 1]),
        # 101, 202, 303
        ((1, 2, 3), (0, 0, 0), [0.66, 0.33, 0]),
    ],
)
def test_requests_that_do_not_run_yet_count_a_hundred_times_more(sent, running, scores):
    found = [
        candidate(name, Load(running=reported), requests=count)
        for name, count, reported in zip("abc", sent, running, strict=True)
    ]
    assert KthenaLeastRequestScorer().score(request(), found) == scores


def test_endpoints_with_a_queue_are_dropped():
    found = [
        candidate(name, Load(waiting=count)) for name, count in zip("abc", (9, 10, 11), strict=True)
    ]
    assert kept(KthenaLeastRequestScorer().filter(request(), found)) == ["a"]
    assert kept(KthenaLeastRequestScorer(11).filter(request(), found)) == ["a", "b"]
    assert kept(KthenaLeastRequestScorer(1).filter(request(), found)) == []


class Observatory:
    """Three pods, and responses of theirs: first tokens after `ttft`, others every `tpot`."""

    def __init__(self, **parameters):
        self.rig = Rig(0)
        self.rig.now = 0.0
        for number, name in enumerate("abc"):
            self.rig.add(name, f"10.0.0.{number + 1}")
        struct = msgspec.convert(parameters, KthenaLeastLatencyScorer)
        self.scorer = struct.start(Context(fleet=self.rig.fleet))

    def see(self, name, at, ttft, tpot=None):
        """Have the first token come at a time, and with `tpot` an end of 11 tokens."""
        identity = f"{name} {at} {ttft}"
        self.rig.now = at - ttft
        self.rig.send(name, identity)
        self.rig.now = at
        self.rig.apply(FirstToken(RequestId(identity)))
        if tpot is not None:
            self.rig.now += 10 * tpot
            self.rig.apply(Finished(RequestId(identity), Usage(completion_tokens=11)))

    def scores(self, now):
        return self.scorer.score(request(), [candidate(name, now=now) for name in "abc"])


@pytest.mark.parametrize(
    ("parameters", "scores"),
    [
        # TTFT 0.25, 0.5, 0.75: places 1, 0.5, 0. TPOT 0.05, 0.05, 0.025: places 0, 0, 1.
        ({}, [0.5, 0.25, 0.5]),
        ({"TTFTTPOTWeightFactor": 1}, [1, 0.5, 0]),
        ({"TTFTTPOTWeightFactor": 0}, [0, 0, 1]),
    ],
)
def test_the_places_between_the_slowest_and_the_fastest_are_weighed(parameters, scores):
    at = Observatory(**parameters)
    at.see("a", 1, 0.25, 0.05)
    at.see("b", 2, 0.5, 0.05)
    at.see("c", 3, 0.75, 0.025)
    assert at.scores(4) == pytest.approx(scores)


def test_a_mean_is_of_the_last_second_in_which_anything_was_seen():
    at = Observatory(TTFTTPOTWeightFactor=1)
    at.see("a", 1.5, 1, 0.0625)
    at.see("a", 2.125, 0.125, 0.0625)  # 2.75 is the end
    at.see("b", 3, 0.5, 0.0625)
    at.see("c", 4, 1, 0.0625)
    assert at.scores(9) == pytest.approx([1, 0.57, 0])  # 0.5 / 0.875
    at.see("a", 10.25, 0.25)
    at.see("a", 10.5, 0.75)
    assert at.scores(10.5) == pytest.approx([1, 0.57, 0])  # the second is not over
    assert at.scores(11) == [1, 1, 0]  # 0.5
    assert at.scores(99) == [1, 1, 0]


def test_an_endpoint_that_is_gone_is_forgotten_though_its_responses_go_on():
    at = Observatory()
    at.see("a", 0.5, 0.5, 0.01)
    at.see("a", 1, 0.25)
    at.rig.send("a", "second")
    at.rig.apply(EndpointRemoved(EndpointId("default/a")))
    at.rig.apply(FirstToken(RequestId("second")))
    for identity in ("a 1 0.25", "second"):
        at.rig.apply(Finished(RequestId(identity), Usage(completion_tokens=11)))
    assert not at.scorer._ttft
    assert not at.scorer._tpot


def test_endpoints_that_were_not_seen_are_in_the_middle():
    at = Observatory()
    assert at.scores(1) == [0.5, 0.5, 0.5]
    at.see("a", 1, 0.25)  # its end was not seen
    at.see("b", 2, 0.25, 0.05)
    at.see("c", 2, 0.25)
    at.rig.apply(Finished(RequestId("c 2 0.25"), Usage(completion_tokens=1)))  # with no other token
    assert at.scores(2.5) == [0.5, 0.5, 0.5]
    assert at.scores(3) == [0.5, 1, 0.5]
    assert at.scorer.score(request(), []) == []
    at.rig.apply(EndpointRemoved(endpoint("b").id))
    assert at.scores(4) == [0.5, 0.5, 0.5]
    assert len(at.scorer._ttft) == 2


def prefixes(*holding, **parameters):
    at = Desk(PREFIX, len(holding), **parameters)
    at.hold(tokens(8), *holding)
    return at


def scores(at, *prompts):
    return [*at.scores(*prompts).values()]


def test_the_share_of_the_blocks_is_the_score():
    at = prefixes(3, 8, 0)
    assert scores(at, tokens(8)) == [0.37, 1, 0]
    assert scores(at, tokens(16)) == [0.18, 0.5, 0]
    assert scores(at, tokens(8, 5000)) == scores(at) == scores(at, "short") == [0, 0, 0]


def test_the_first_blocks_count_as_the_whole():
    at = prefixes(3, 8, 0, maxBlocksToMatch=4)
    assert scores(at, tokens(8)) == [0.75, 1, 0]
    assert scores(at, tokens(100)) == [0.75, 1, 0]


def test_only_the_longest_matches_score_and_chance_decides_between_equals():
    drawn: list[int] = []
    at = Desk(PREFIX, 4, below=lambda _: drawn.pop(0) if drawn else 0, topKMatches=2)
    at.hold(tokens(8), 4, 4, 8, 4)
    for draw, found in ((0, [0.5, 0, 1, 0]), (1, [0, 0.5, 1, 0]), (2, [0, 0, 1, 0.5])):
        drawn[:] = [0, draw]  # the only one with 8, then one of those with 4
        assert scores(at, tokens(8)) == found


def test_each_endpoint_keeps_so_many_blocks_and_the_beginnings_longest():
    at = prefixes(0, 0, maxHashCacheSize=6)
    at.hold(tokens(4), 4, 4)
    at.hold(tokens(4, 5000), 4)
    assert scores(at, tokens(4)) == [0.5, 1]
    assert scores(at, tokens(4, 5000)) == [1, 0]
    at.hold(tokens(4)[: 2 * BLOCK], 2)
    at.hold(tokens(2, 9000), 2)
    assert scores(at, tokens(4)) == [0.5, 1]
    assert scores(at, tokens(4, 5000)) == [0.5, 0]


class Sent(OrderedDict[BlockHash, None]):
    """Blocks that count how often one is looked up."""

    times = 0

    def __contains__(self, block):
        self.times += 1
        return super().__contains__(block)


def test_only_the_first_block_is_looked_up_where_it_was_not_sent():
    at = prefixes(8, 8, 8)
    sent = at.scorer._sent = {name: Sent(blocks) for name, blocks in at.scorer._sent.items()}
    assert scores(at, tokens(8, 5000)) == [0, 0, 0]
    assert [blocks.times for blocks in sent.values()] == [1, 1, 1]


def test_nothing_is_kept_of_endpoints_that_go():
    at = prefixes(8, 4)
    at.remove(0)
    at.remove(1)
    assert at.scorer._sent == {}
