"""preble-e2: exploit, explore and rebalance, worked out by hand from the paper and its code."""

import pytest

from epp.model.decision import Decision
from epp.model.events import EndpointRemoved
from epp.model.request import RequestId, Usage
from epp.model.request_events import Finished, FirstToken
from epp.policy.attribute_sources import PrefixMatch
from epp.policy.peers.preble import PrebleE2Scorer
from tests.model.rig import Rig
from tests.policy.started import Context, Told, started
from tests.strategies import candidate, endpoint, request

SENT = {"a": 4, "b": 1}
"""Prompts of two seconds' prefill that went to each."""


class Office:
    """A scorer that prompts were sent by, which are not under way."""

    def __init__(self, sent=(), **parameters):
        self.rig = Rig(0)
        self.rig.now = 0.0
        for number, name in enumerate("abc"):
            self.rig.add(name, f"10.0.0.{number + 1}")
        self.scorer = PrebleE2Scorer(**parameters).start(Context(fleet=self.rig.fleet))
        for name, count in dict(sent).items():
            for _ in range(count):
                self.send(name, 0.0)

    def send(self, name, now, seconds=2.0):
        found = [candidate(name, prefill_seconds=seconds)]
        decision = Decision(endpoints=(endpoint(name),), candidates=found)
        self.scorer.committed(request(), decision, now)

    def answer(self, name, tokens, seconds):
        """Have a response of that many tokens come within that time after its first one."""
        self.rig.send(name, "r1")
        self.rig.apply(FirstToken(RequestId("r1")))
        self.rig.now += seconds
        self.rig.apply(Finished(RequestId("r1"), Usage(completion_tokens=tokens)))

    def loads(self, names="abc", now=0.0, requests=0):
        found = [candidate(name, now=now, requests=requests) for name in names]
        return [*self.scorer._loads(found).values()]

    def scores(self, now=10.0, cached=(0, 0, 0), requests=(0, 0, 0), total=1000):
        """Score a, b and c, where prefill takes a millisecond a token."""
        found = [
            candidate(
                name,
                now=now,
                prompt_tokens=total,
                cached_tokens=tokens,
                prefill_seconds=(total - tokens) / 1000,
                requests=count,
            )
            for name, tokens, count in zip("abc", cached, requests, strict=True)
        ]
        return self.scorer.score(request("asked"), found)


def test_an_exploited_prefix_has_to_be_more_than_half_of_the_prompt():
    """Loads are 8, 2 and 0 seconds; with prefill of 0.4 or 0.5, 1 and 1 they are 8.4, 3 and 1."""
    at = Office(SENT)
    assert at.scores(cached=(600, 0, 0)) == [1, 0, 0]
    assert at.scores(cached=(500, 0, 0)) == [0, 0, 1]
    assert at.scores(cached=(501, 0, 0)) == [1, 0, 0]
    assert at.scores(total=0) == [0, 0, 1]


def test_of_those_that_have_the_most_the_least_loaded_is_exploited():
    at = Office(SENT)
    assert at.scores(cached=(600, 600, 599)) == [0, 1, 0]
    assert Office().scores(cached=(600, 600, 0)) == [1, 1, 0]


def test_what_is_under_way_is_load():
    """A request under way takes 45 * 0.15 = 6.75 s: the loads are 8, 8.75 and 13.5 seconds."""
    at = Office(SENT)
    assert at.scores(requests=(0, 1, 2)) == [1, 0, 0]
    assert at.scores(requests=(0, 0, 2)) == [0, 1, 0]


@pytest.mark.parametrize(
    ("parameters", "scores"),
    [
        # Exploring costs 0 + 1 s at c. 8 s at a are more than 1.5 times that, but only 5 of
        # 3 * 50 requests were sent, as of 3 * 2.
        ({}, [1, 0, 0]),
        ({"rebalance_requests": 2}, [1, 0, 0]),
        ({"rebalance_requests": 1}, [0, 0, 1]),
        ({"rebalance_requests": 1, "rebalance_ratio": 7.9}, [0, 0, 1]),
        ({"rebalance_requests": 1, "rebalance_ratio": 8}, [1, 0, 0]),
    ],
)
def test_what_is_much_more_loaded_is_left(parameters, scores):
    assert Office(SENT, **parameters).scores(cached=(600, 0, 0)) == scores


def test_prefill_counts_as_long_as_the_window():
    at = Office(window_seconds=60)
    at.send("a", 0.5)
    at.send("a", 30.2)
    at.send("b", 60.9, seconds=3)
    assert at.loads(now=60.9) == [4, 3, 0]
    assert at.loads(now=61) == [2, 3, 0]
    assert at.loads(now=500) == [0, 0, 0]


def test_lengths_and_times_of_responses_are_learned():
    """After 45 and 105 tokens a response has 75; of 0.15 and 0.05 s the median is 0.1 s."""
    at = Office()
    at.answer("a", 105, 104 * 0.05)
    assert at.loads("ab", requests=1) == pytest.approx([75 * 0.1, 75 * 0.15])
    at.answer("b", 1, 0.0)  # without any step
    assert at.loads("ab", requests=1) == pytest.approx([151 / 3 * 0.1, 151 / 3 * 0.15])


def test_what_goes_is_forgotten():
    at = Office(SENT)
    at.answer("a", 11, 1.0)
    at.rig.apply(EndpointRemoved(endpoint("a").id))
    assert [*at.scorer._work] == [endpoint("b").id]
    assert at.scorer._steps == {}
    assert len(at.scorer._responses) == 0


def test_prefill_elsewhere_is_booked_there():
    at = Office()
    found = [candidate("p", prefill_seconds=4.0)]
    stage = Decision(endpoints=(endpoint("p"),), profile="prefill", candidates=found)
    decision = Decision(endpoints=(endpoint("a"),), stages=(stage,), prefill=endpoint("p"))
    at.scorer.committed(request(), decision, 1.0)
    assert at.loads("ap", now=1.0) == [0, 4]


def test_a_named_producer_is_asked():
    told = Told({"b": PrefixMatch(60, 100)}, PrefixMatch(0, 100))
    scorer = started(PrebleE2Scorer(prefix_match_info_producer_name="precise"), precise=told)
    assert scorer.score(request(), [candidate("a"), candidate("b")]) == [0, 1]
