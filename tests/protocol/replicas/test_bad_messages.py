"""What others may send a replica: of it nothing is learned, and it is counted."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId, Target
from epp.model.events import EndpointRemoved
from epp.model.request import RequestId
from epp.model.request_events import Served
from epp.protocol.replicas.facts import (
    VERSION,
    AbortedFact,
    AdmittedFact,
    ChainQuery,
    FirstTokenFact,
    HeartbeatFact,
    HeartbeatSeen,
    InFlightQuery,
    InFlightReply,
    LeavingFact,
    RequestsQuery,
)
from epp.protocol.replicas.messages import LONGEST, read_facts, read_message
from epp.protocol.replicas.peers import CHAIN_SECONDS
from tests.model.invariants import check_invariants
from tests.protocol.replicas.pair import POOL, Replica, held, in_flight
from tests.strategies import text

PROMPT = text(400)


def raw(sender, sequence, facts, noted=0.0):
    return msgspec.msgpack.encode([VERSION, POOL, sender, sequence, noted, facts])


def told(number=1, pool=POOL):
    one = Replica(number, pool=pool)
    one.admit("a", PROMPT)
    (message,) = one.tell()
    return message


def learned(replica):
    return in_flight(replica), held(replica), replica.reader.applied


NOTHING = learned(Replica(9))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (told(pool=b"another!"), "POOL"),
        (told(number=2), "OWN"),
        (b"\0" * (10 << 20), "TOO_LONG"),
        (b"", "MALFORMED"),
        (b"GET / HTTP/1.1\r\n\r\n", "MALFORMED"),
        (b"\x91" * 100_000, "MALFORMED"),
        (msgspec.msgpack.encode([VERSION + 1, "whatever comes", {}]), "VERSION"),
        (msgspec.msgpack.encode([VERSION, POOL, 1, 1, 0.0]), "MALFORMED"),
        (msgspec.msgpack.encode([VERSION, POOL, 1, 1, 0.0, "facts"]), "MALFORMED"),
        (raw(-1, 1, []), "MALFORMED"),
        (raw(1, -1, []), "MALFORMED"),
        (raw(1, 1, [], math.nan), "MALFORMED"),
        (raw(1, 1, [], -math.inf), "MALFORMED"),
        (raw(1, 1, [["no", "kind"]]), "UNKNOWN_KIND"),
        (raw(1, 1, [[99, 1, 2]]), "UNKNOWN_KIND"),
        (raw(1, 1, [[1, -1, "a"]]), "UNKNOWN_KIND"),
        (raw(1, 1, [[2, 1 << 60]]), "UNKNOWN_KIND"),
        (raw(1, 1, [[8, "default/pod-0", "consecutive_failures", math.inf]]), "UNKNOWN_KIND"),
        (raw(1, 1, [[8, "default/pod-0", "consecutive_failures", math.nan]]), "UNKNOWN_KIND"),
        (raw(1, 1, [[10, "a", -5, b"12345678", [1]]]), "UNKNOWN_KIND"),
        (raw(1, 1, [[22, math.nan, 0, 0]]), "UNKNOWN_KIND"),
        (raw(1, 1, [[23, -math.inf, 0.0]]), "UNKNOWN_KIND"),
        (raw(1, 1, [[10, "a", 5, b"1234567", [1]]]), "NONSENSE"),
        (raw(1, 1, [[10, "a", 5, b"", []]]), "NONSENSE"),
        (raw(1, 1, [[10, "a", 5, b"12345678", [1, 2]]]), "NONSENSE"),
    ],
)
def test_what_cannot_be_used_is_dropped_and_counted(message, reason):
    replica = Replica(2)
    assert replica.hear(message) is None
    assert replica.dropped == {reason: 1}
    assert learned(replica) == NOTHING


@given(st.binary(max_size=200))
def test_noise_never_raises(noise):
    replica = Replica(2)
    replica.hear(noise)
    assert learned(replica) == NOTHING


@given(st.data())
def test_a_message_that_is_cut_off_or_changed_never_raises(data):
    message = bytearray(told())
    end = data.draw(st.integers(0, len(message)))
    for _ in range(data.draw(st.integers(0, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    replica = Replica(2)
    replica.hear(bytes(message[:end]))
    check_invariants(replica.fleet)


def test_a_request_has_no_more_answers_than_a_client_can_ask_for():
    one = Replica(1)
    one.admit("a", PROMPT, n=2)
    (message,) = one.writer.messages()
    ((*admitted, n),) = msgspec.msgpack.decode(message)[-1]
    replica = Replica(2)
    replica.hear(raw(1, 1, [[*admitted, n * 10**6]]))
    assert replica.dropped == {"UNKNOWN_KIND": 1}
    assert learned(replica) == NOTHING


def test_a_fact_of_a_later_version_costs_no_other():
    """Kinds that come later, and fields that come later, are passed over."""
    one = Replica(1)
    one.admit("a", PROMPT)
    (message,) = one.writer.messages()
    (admitted,) = msgspec.msgpack.decode(message)[-1]
    longer = [*admitted, "a field of tomorrow"]
    replica = Replica(2)
    replica.hear(raw(1, 1, [[99, "a kind of tomorrow"], longer]))
    assert in_flight(replica) == in_flight(one)
    assert replica.dropped == {"UNKNOWN_KIND": 1}


def test_a_message_that_comes_again_changes_nothing():
    replica, message = Replica(2), told()
    replica.hear(message)
    once = learned(replica)
    replica.hear(message)
    assert learned(replica) == once
    assert replica.dropped == {"REPEATED": 1}


def test_a_message_from_the_future_is_a_message():
    replica = Replica(2)
    first = told()
    later = raw(1, 1 << 30, [FirstTokenFact(1)])
    replica.hear(later)
    replica.hear(first)
    assert replica.dropped == {"REPEATED": 1}  # too far behind to be told from one that came before
    assert learned(replica) == NOTHING


def test_facts_about_requests_that_nobody_told_of_are_kept_within_bounds():
    replica = Replica(2)
    for sequence in range(1, 40):
        facts = [AbortedFact(number + 500 * sequence) for number in range(500)]
        replica.hear(raw(1, sequence, facts))
    (peer,) = replica.reader.peers.values()
    assert len(peer.requests._early) == 4096
    assert learned(replica) == NOTHING


def test_requests_that_wait_for_chains_are_kept_within_bounds():
    replica = Replica(2)
    one = Replica(1)
    one.admit("a", PROMPT)
    one.tell()
    one.admit("b", PROMPT)
    (message,) = one.writer.messages()
    ((fact,), _) = read_facts(read_message(message))
    assert isinstance(fact, AdmittedFact)
    for number in range(9):
        facts = [msgspec.structs.replace(fact, number=number * 500 + each) for each in range(500)]
        replica.hear(raw(1, number + 1, facts))
    (peer,) = replica.reader.peers.values()
    assert len(peer.believed()) == 4096
    replica.now += 2 * CHAIN_SECONDS
    replica.lapse()
    assert peer.believed() == set()
    replica.hear(raw(1, 10, [fact]))
    assert peer.believed() == {fact.number}  # there is room again
    assert learned(replica) == NOTHING


def test_many_questions_in_one_message_get_few_answers():
    replica = Replica(2)
    replica.admit("a", PROMPT)
    replica.tell()
    facts = [*[HeartbeatFact(0.0, 0, 0)] * 3, *[InFlightQuery()] * 3, *[RequestsQuery([1])] * 3]
    answers = replica.reader.read(raw(1, 1, facts), 0.0).answers
    assert [type(each) for each in answers] == [HeartbeatSeen, InFlightReply, AdmittedFact]
    same = replica.reader.read(raw(1, 2, [ChainQuery(1, 1)] * 3), 0.0).answers
    assert [getattr(each, "tip", None) for each in same] == [1]
    many = replica.reader.read(raw(1, 3, [ChainQuery(tip, 1) for tip in range(5000)]), 0.0).answers
    assert [getattr(each, "tip", None) for each in many] == list(range(4096))


def test_more_senders_than_any_pool_has_are_not_listened_to():
    replica = Replica(2)
    for number in range(3, 1100):
        replica.hear(raw(number, 1, [FirstTokenFact(1)]))
    assert len(replica.reader.peers) == 1024
    assert set(replica.dropped) == {"STRANGER"}


def test_replicas_that_come_and_go_keep_no_place_from_those_that_come():
    replica = Replica(2)
    for number in range(3, 3000):
        replica.now += 0.1
        replica.hear(raw(number, 1, [FirstTokenFact(1)]))
        if number > 3:
            replica.hear(raw(number, 2, [LeavingFact()]))
    assert replica.dropped == {}
    assert {3, 2999} < replica.reader.peers.keys()
    assert len(replica.reader.peers) == 1024
    assert replica.reader.present == 1


def test_epochs_of_endpoints_that_come_and_go_are_kept_within_bounds():
    one, other = Replica(1), Replica(2)
    for number in range(5000):
        name = f"pod-{number}"
        for each in (one, other):
            each.add(name, f"10.{number >> 8}.{number & 255}.1")
        one.admit(name, "prompt", pod=name)
        for message in one.tell():
            other.hear(message)
        for each in (one, other):
            each.apply(EndpointRemoved(EndpointId(f"default/{name}")))
    assert other.dropped == {}
    assert len(one.writer._epochs) == len(other.writer._epochs) == 4096


def test_the_longest_message_is_long_enough_for_a_prompt_of_a_million_tokens():
    one = Replica(1)
    one.admit("a", list(range(1 << 20)))
    (message,) = one.tell()
    assert len(message) < LONGEST


def test_what_cannot_be_written_costs_nobody_else():
    """Clients choose limits as they like, and proxies what they report."""
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPT, max_tokens=1 << 90)
    one.apply(Served(RequestId("a"), Target("\udcff")))
    one.admit("b", PROMPT)
    for message in one.tell():
        other.hear(message)
    assert in_flight(other) == {"a": "default/pod-0", "b": "default/pod-0"}
