"""d2lpm: credits of clients at endpoints, worked out by hand."""

import pytest

from epp.model.decision import Decision
from epp.model.events import EndpointRemoved
from epp.model.request import RequestId, Usage
from epp.model.request_events import Aborted, Finished
from epp.policy.client_keys import client_key
from epp.policy.peers import d2lpm
from epp.policy.peers.d2lpm import D2LpmScorer
from tests.policy.started import Context
from tests.strategies import candidate, endpoint, request


class Bank:
    """A scorer with quanta of 1000 tokens, and what Ann spent at endpoints."""

    def __init__(self, spent=(), **parameters):
        context = Context()
        self.scorer = D2LpmScorer(**{"worker_quantum": 1000, **parameters}).start(context)
        (self.hear_at,) = context.listeners
        self.number = 0
        for name, tokens in dict(spent).items():
            self.spend(name, tokens)

    def spend(self, name, tokens, client="ann"):
        """Send a prompt of which that many tokens are not cached."""
        self.number += 1
        asked = request(f"r{self.number}", fairness_id=client)
        decision = Decision(
            endpoints=(endpoint(name),), prompt_tokens=tokens + 7, predicted_cached_tokens=7
        )
        self.scorer.committed(asked, decision, 0.0)
        return asked.id

    def hear(self, event):
        self.hear_at(event, 0.0, False)

    def scores(self, cached=(0, 0, 0), requests=(0, 0, 0), client="ann"):
        found = [
            candidate(name, prompt_tokens=1000, cached_tokens=tokens, requests=count)
            for name, tokens, count in zip("abc", cached, requests, strict=True)
        ]
        return self.scorer.score(request("asked", fairness_id=client), found)


@pytest.mark.parametrize(
    ("spent", "cached", "requests", "scores"),
    [
        ({}, (500, 900, 0), (0, 9, 0), [0, 1, 0]),  # the longest prefix, whatever the load
        ({}, (0, 0, 0), (1, 0, 0), [0, 1, 1]),
        ({}, (0, 500, 500), (0, 2, 1), [0, 0, 1]),
        ({"b": 999}, (500, 900, 0), (0, 0, 0), [0, 1, 0]),  # a token is left
        ({"b": 1000}, (500, 900, 0), (0, 0, 0), [1, 0, 0]),  # nothing is: the next longest
        ({"b": 1000, "a": 1000}, (500, 900, 0), (0, 0, 0), [0, 0, 1]),
        # Nothing is left anywhere: a quantum for each, of which b has 500 and the others nothing.
        ({"a": 2000, "b": 1500, "c": 2000}, (900, 500, 0), (0, 0, 0), [0, 1, 0]),
        # Two for each: a has 1, b 500.
        ({"a": 2999, "b": 2500, "c": 3000}, (900, 500, 0), (0, 0, 0), [1, 0, 0]),
    ],
)
def test_the_longest_prefix_where_credit_is_left(spent, cached, requests, scores):
    assert Bank(spent).scores(cached, requests) == scores


def test_quanta_are_given_at_all_endpoints_once_a_request_is_sent():
    """After 1500 and 1000 there are -500, 0 and 1000; the last 1000 at c leave nothing."""
    bank = Bank({"a": 1500, "b": 1000, "c": 1000})
    cached = (900, 500, 400)
    assert bank.scores(cached) == [1, 0, 0]  # a quantum: 500, 1000, 1000
    bank.spend("b", 100)  # which has to be given it: 500, 900, 1000
    bank.spend("a", 500)
    assert bank.scores(cached) == [0, 1, 0]


def test_quanta_that_were_given_are_not_taken_back():
    """After 1600 of two quanta a has 400, whatever else is sent where both are left."""
    bank = Bank({"a": 1500})
    bank.spend("a", 100)
    bank.spend("b", 1)
    assert bank.scores((900, 500, 0)) == [1, 0, 0]


def test_an_endpoint_that_is_new_to_a_client_begins_with_one_quantum():
    """After 3000 at each of two, a new one is not owed 3000, but 1000 like any other."""
    bank = Bank()
    for _ in range(3):
        bank.spend("a", 1000)
        bank.spend("b", 1000)
    cached = (900, 500, 0)
    assert bank.scores(cached) == [0, 0, 1]
    bank.spend("c", 999)
    assert bank.scores(cached) == [0, 0, 1]
    bank.spend("c", 1)
    assert bank.scores(cached) == [1, 0, 0]


def test_each_client_has_accounts_of_its_own():
    bank = Bank({"a": 1000})
    assert bank.scores((900, 0, 0)) == [0, 1, 1]
    assert bank.scores((900, 0, 0), client="bob") == [1, 0, 0]


@pytest.mark.parametrize(
    ("event", "scores"),
    [
        (Finished(RequestId("r1"), Usage(completion_tokens=49)), [1, 0, 0]),  # 998
        (Finished(RequestId("r1"), Usage(completion_tokens=50)), [0, 1, 1]),  # 1000
        (Finished(RequestId("r1"), None, 50), [0, 1, 1]),
        (Aborted(RequestId("r1"), 50), [0, 1, 1]),
        (Aborted(RequestId("r1")), [1, 0, 0]),
        (Finished(RequestId("other"), None, 50), [1, 0, 0]),
    ],
)
def test_responses_cost_twice_as_much(event, scores):
    bank = Bank({"a": 900})
    bank.hear(event)
    bank.hear(event)  # a second time counts nothing
    assert bank.scores((900, 0, 0)) == scores


def test_what_goes_is_forgotten(monkeypatch):
    monkeypatch.setattr(d2lpm, "_MAX_CLIENTS", 2)
    bank = Bank({"a": 1000, "b": 1000})
    for number, name in enumerate("ab", 1):
        bank.hear(EndpointRemoved(endpoint(name).id))
        bank.hear(Finished(RequestId(f"r{number}"), None, 50))  # sent before it went
    assert bank.scores((900, 0, 0)) == [1, 0, 0]
    assert bank.scorer._under_way == {}
    bank.spend("c", 1, "bob")
    bank.spend("d", 1, "ann")
    assert len(bank.scorer._accounts[client_key("ann")].spent) == 1
    for client in ("bob", "ann", "cleo"):
        bank.spend("b", 1, client)
    assert [*bank.scorer._accounts] == [client_key("ann"), client_key("cleo")]
    assert bank.scorer.score(request(), []) == []
