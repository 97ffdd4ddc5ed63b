"""Chains that are asked for because they were not told, and the requests that wait for them."""

from epp.model.request import Prompt, RequestId, Usage
from epp.model.request_events import Finished, FirstToken
from epp.protocol.replicas.facts import AdmittedFact, ChainQuery, ChainReply
from epp.protocol.replicas.messages import LONGEST
from tests.protocol.replicas.pair import (
    POD,
    PROMPTS,
    Replica,
    exchange,
    facts_of,
    held,
    in_flight,
    settle,
)
from tests.strategies import text

SHARED = text(2000)


def waiting_for_a_chain(one, number):
    """The one message of a request with a prompt that begins as one that was not heard of."""
    one.admit(f"r{number}", SHARED + text(50, seed=str(number)))
    (message,) = one.tell()
    return message


def asked(answer):
    facts = [] if answer is None else facts_of(answer)
    return [each.tip for each in facts if isinstance(each, ChainQuery)]


def with_a_chain_untold():
    """Two replicas, and a message of the first that names a chain the second never heard of."""
    one = Replica(1)
    one.admit("a", PROMPTS[0])
    one.tell()
    one.admit("b", PROMPTS[0])
    (message,) = one.tell()
    return one, Replica(2), message


def test_a_chain_that_a_third_one_told_is_asked_for():
    """Who knows a chain from others tells its tip to one who never heard of it."""
    one, other, late = Replica(1), Replica(2), Replica(3)
    one.admit("a", PROMPTS[0])
    settle(one, other)
    other.admit("b", PROMPTS[0], pod="pod-1")
    (message,) = other.tell()
    assert len(message) < 200
    exchange(other, late, message)
    assert in_flight(late) == {"b": "default/pod-1"}
    assert held(late)["default/pod-1"] == held(other)["default/pod-1"]


def test_no_more_long_chains_are_told_at_once_than_can_be_read():
    one, other = Replica(1), Replica(2)
    one.admit("a", prompts=(Prompt(bytes(4 << 19), exact=True),))
    one.tell()
    hashes = one.in_flight("a").quote.chains[0].hashes
    queries = [ChainQuery(hashes[end - 1], end) for end in range(8, 520, 8)]
    answer = one.hear(other.writer.to_one(queries, one.now))
    assert answer is not None
    assert len(answer) < LONGEST
    assert {type(each) for each in facts_of(answer)} == {ChainReply}


def test_what_is_told_of_a_request_while_its_chain_is_asked_for_is_not_lost():
    one, late, message = with_a_chain_untold()
    asked = late.hear(message)
    one.apply(FirstToken(RequestId("b")))
    one.apply(Finished(RequestId("b"), Usage(600, 5, 0)))
    for more in one.tell():
        assert late.hear(more) is None
    assert in_flight(late) == {}
    exchange(late, one, asked)
    assert in_flight(late) == {}
    assert held(late)[POD]
    assert late.reader.applied == 3


def test_a_request_of_two_prompts_waits_for_the_one_that_is_not_known():
    one, late = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    one.tell()
    one.admit("b", text(300, seed="new"), PROMPTS[0])
    (message,) = one.tell()
    exchange(one, late, message)
    there, here = late.in_flight("b").quote, one.in_flight("b").quote
    for position in range(2):
        ours, theirs = here.token_offsets[position], there.token_offsets[position]
        assert list(theirs.ends) == list(ours.ends)


def test_a_chain_that_nobody_has_any_more_costs_its_request():
    one, late, message = with_a_chain_untold()
    asked = late.hear(message)
    one.forget_chains()
    exchange(late, one, asked)
    assert (in_flight(late), late.dropped) == ({}, {"NO_CHAIN": 1})


def test_a_chain_that_is_not_told_in_time_costs_its_request():
    one, late, message = with_a_chain_untold()
    late.hear(message)
    late.now += 2
    late.lapse()
    assert late.dropped == {"NO_CHAIN": 1}
    late.now = one.now = late.now + 1
    exchange(one, late, one.heartbeat())
    assert in_flight(late) == in_flight(one)


def test_a_chain_is_asked_for_again_if_it_is_not_told():
    one, other = Replica(1), Replica(2)
    one.admit("first", SHARED)
    one.tell()
    queries = {}
    for number in range(25):  # a request each 0.1 s: some wait at any time
        one.now = other.now = number / 10
        query = other.hear(waiting_for_a_chain(one, number))
        if asked(query):
            queries[number] = query
        other.lapse()
    assert list(queries) == [0, 10, 20]
    assert len({tip for each in queries.values() for tip in asked(each)}) == 1
    assert other.dropped == {"NO_CHAIN": 15}
    exchange(other, one, queries[20])
    assert set(in_flight(other)) == {f"r{number}" for number in range(15, 25)}


def test_a_chain_is_asked_for_though_there_is_no_room_for_what_waits():
    one, other = Replica(1), Replica(2)
    one.admit("first", SHARED)
    one.tell()
    exchange(other, one, other.heartbeat())
    other.hear(one.heartbeat())
    (peer,) = other.reader.peers.values()
    (fact,) = facts_of(waiting_for_a_chain(one, 0))
    assert isinstance(fact, AdmittedFact)
    assert [peer.wait(1, fact, 0.0) for _ in range(5000)] == [True] + [False] * 4999
    assert [peer.wait(2, fact, each) for each in (0.0, 0.5, 1.0)] == [True, False, True]
    assert len(peer.waiting_for(1)) == 4096
    assert peer.waiting_for(2) == []
    assert peer.wait(2, fact, 1.0)
    assert peer.overdue_chains(1.0) == 1
    assert peer.believed() == set()
