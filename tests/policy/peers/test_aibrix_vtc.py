"""aibrix-vtc-basic: the costs of AIBrix's vtc_basic.go, worked out by hand."""

import pytest

from epp.model.decision import Decision
from epp.model.endpoint import Load
from epp.policy.client_keys import client_key
from epp.policy.peers import aibrix
from epp.policy.peers.aibrix import AiBrixVtcBasicScorer
from tests.policy.started import started
from tests.strategies import candidate, endpoint, request


class Counter:
    """A scorer, and what users were served by requests of so many tokens, at their times."""

    def __init__(self, served=(), drawn=(), **parameters):
        self.scorer = started(AiBrixVtcBasicScorer(**parameters), drawn)
        for user, tokens, at in served:
            self.serve(user, tokens, at)

    def serve(self, user, tokens, at=0.0):
        decision = Decision(endpoints=(endpoint("a"),), prompt_tokens=tokens)
        self.scorer.committed(request(fairness_id=user), decision, at)

    def scores(self, user, running=(0, 0, 0, 0), now=0.0):
        found = [
            candidate(name, Load(running=count), now=now)
            for name, count in zip("abcd", running, strict=True)
        ]
        return self.scorer.score(request(fairness_id=user), found)


# A prompt of 1000 tokens counts 1000 + 2 * 1500 = 4000.
TWO = (("ann", 1000, 0.0), ("bob", 3000, 0.0))
"""Ann was served 4000 and Bob 12000: the unit is 8000, of which they have 0.5 and 1.5."""


@pytest.mark.parametrize(
    ("user", "running", "scores"),
    [
        # |i - 0.5|: 0.5, 0.5, 1.5, 2.5
        ("ann", (0, 0, 0, 0), [1, 1, 0.5, 0]),
        # |i - 1.5|: 1.5, 0.5, 0.5, 1.5
        ("bob", (0, 0, 0, 0), [0, 1, 1, 0]),
        # 0.5, 0.5 + 0.5, 1.5, 2.5 + 1, of at most 100 running
        ("ann", (0, 50, 0, 200), [1, 2.5 / 3, 2 / 3, 0]),
        # Cleo was served nothing: 0, 1, 2, 3
        ("cleo", (0, 0, 0, 0), [1, 2 / 3, 1 / 3, 0]),
    ],
)
def test_the_place_in_the_list_suits_what_was_served(user, running, scores):
    assert Counter(TWO).scores(user, running) == pytest.approx(scores)


def test_who_was_served_the_most_is_at_the_last_one():
    """Of 40 times the least the mean is 20.5 times it: Bob has 1.95 units, |i - 1.95|."""
    counter = Counter((("ann", 1000, 0.0), ("bob", 40_000, 0.0)))
    assert counter.scores("bob") == pytest.approx(
        [0, (1.9512 - 0.9512) / 1.9024, 1, (1.9512 - 1.0488) / 1.9024], abs=1e-3
    )
    two = [candidate("a"), candidate("b")]
    assert counter.scorer.score(request(fairness_id="bob"), two) == [0, 1]  # clamped to 1


def test_the_unit_is_at_least_the_least():
    """40 tokens count 160, of a unit of 1000 and not of 160."""
    counter = Counter((("ann", 40, 0.0),))
    assert counter.scores("ann") == pytest.approx([1, (2.84 - 0.84) / 2.68, 1 / 2.68, 0])


def test_before_anybody_was_served_the_bounds_are_the_defaults():
    """The unit is (2000 + 8000) / 2; a first request of 500 tokens counts 2000: it is the unit."""
    counter = Counter(min_tokens=2000)
    assert counter.scores("ann") == pytest.approx([1, 2 / 3, 1 / 3, 0])
    counter.serve("ann", 500)
    assert counter.scores("ann") == pytest.approx([0.5, 1, 0.5, 0])  # |i - 1|


def test_weights():
    """4000 of input and nothing of output; 0.25 * |i - 1| and 2 * 10 / 20 for the second."""
    counter = Counter(
        (("ann", 1000, 0.0),),
        input_token_weight=4,
        output_token_weight=0,
        fairness_weight=0.25,
        utilization_weight=2,
        max_pod_load=20,
    )
    assert counter.scores("ann", (0, 10, 0, 0)) == pytest.approx([1, 0, 1, 0.5 / 0.75])


def test_chance_adds_up_to_a_tenth():
    """0 + 0.05, 1, 2, 3 + 0.1 * 0.5: the span is 3."""
    counter = Counter(drawn=[0.5, 0, 0, 0.5])
    assert counter.scores("ann") == pytest.approx([1, 2.05 / 3, 1.05 / 3, 0])


def test_service_is_forgotten_after_the_window():
    counter = Counter((("ann", 1000, 0.0), ("ann", 1000, 100.0)))
    assert counter.scores("ann", now=300) == counter.scores("ann", now=200)
    # Of 8000 the last 4000 are left, also for the unit (AIBrix `GetTokenCount` prunes): |i - 1|.
    assert counter.scores("ann", now=301) == pytest.approx([0.5, 1, 0.5, 0])
    # At 400 s nothing is left of Bob's 12000, but they count for the unit until he asks.
    counter = Counter((("bob", 3000, 0.0), ("ann", 1000, 200.0)))
    assert counter.scores("ann", now=400) == pytest.approx([1, 1, 0.5, 0])
    assert counter.scores("bob", now=400) == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert counter.scores("ann", now=400) == pytest.approx([0.5, 1, 0.5, 0])
    counter.serve("bob", 1000, 601.0)
    assert [*counter.scorer._served] == [client_key("bob")]


def test_nobody_in_particular_is_sent_anywhere():
    counter = Counter(TWO)
    asked = request()
    assert counter.scorer.score(asked, [candidate("a", Load(running=9)), candidate("b")]) == [1, 1]
    counter.serve(asked.fairness_id, 1000)
    assert [*counter.scorer._served] == [client_key("ann"), client_key("bob")]


def test_a_request_without_tokens_counts_nothing():
    counter = Counter((("ann", 0, 0.0), *TWO[1:]))
    assert [*counter.scorer._served] == [client_key("bob")]


def test_users_are_bounded(monkeypatch):
    monkeypatch.setattr(aibrix, "_MAX_USERS", 2)
    counter = Counter((*TWO, ("ann", 1, 1.0), ("cleo", 1000, 1.0)))
    assert [*counter.scorer._served] == [client_key("ann"), client_key("cleo")]
