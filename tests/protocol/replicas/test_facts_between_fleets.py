"""What a replica sees, all others know: requests, responses, caches and who is left out."""

import pytest

from epp.model.endpoint import EndpointId, Target
from epp.model.events import Ejected, EjectionReason, EndpointRemoved, Returned
from epp.model.kv_changes import CacheCleared
from epp.model.request import RequestId, Usage
from epp.model.request_events import (
    Aborted,
    Admitted,
    Failure,
    Finished,
    FirstToken,
    Generated,
    ResponseNamed,
    Served,
    Unobserved,
)
from epp.protocol.replicas.facts import (
    AdmittedFact,
    FinishedFact,
    InFlightReply,
    RequestsQuery,
    ServedFact,
)
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


def test_both_tell_and_nothing_comes_back():
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    other.admit("b", PROMPTS[1], pod="pod-1")
    settle(one, other)
    assert in_flight(one) == in_flight(other) == {"a": POD, "b": "default/pod-1"}
    assert one.tell() == other.tell() == []
    assert held(one) == held(other)


@pytest.mark.parametrize(
    ("prompt", "skips"), [(PROMPTS[0], False), (PROMPTS[0], True), ("short", False)]
)
def test_all_know_whether_an_engine_reads_its_cache_for_a_request(prompt, skips):
    one, other = Replica(1), Replica(2)
    one.admit("a", prompt, skip_reading_prefix_cache=skips)
    settle(one, other)
    assert other.in_flight("a").quote.skip_reading_prefix_cache is skips


@pytest.mark.parametrize("prompts", [(), PROMPTS[:1], PROMPTS[:2]])
def test_all_know_how_many_answers_a_request_gets(prompts):
    one, other = Replica(1), Replica(2)
    one.admit("a", *prompts, n=4)
    settle(one, other)
    for each in (one, other):
        there = each.in_flight("a")
        assert there.quote.answers == 4 * len(prompts)
        each.now += 10
    assert other.in_flight("a").coming == one.in_flight("a").coming
    one.apply(Finished(RequestId("a"), Usage(400, 4 * 100 * len(prompts), 0)))
    settle(one, other)
    lengths = [each.fleet.output_lengths.length(("m", True), None) for each in (one, other)]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize("early", [False, True])
def test_all_know_where_a_response_is(early):
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0], pod="pod-1")
    one.admit("b", PROMPTS[1], pod="pod-0")
    sent = one.tell()
    one.apply(ResponseNamed(RequestId("a"), "resp_1"))
    one.apply(Served(RequestId("b"), Target("10.0.0.2:8000")))
    one.apply(ResponseNamed(RequestId("b"), "resp_2"))
    one.apply(FirstToken(RequestId("b")))
    one.apply(Finished(RequestId("a")))
    for message in reversed(sent + one.tell()) if early else sent + one.tell():
        exchange(one, other, message)
    home = other.pod("pod-1").endpoint.engine
    for name in ("resp_1", "resp_2"):
        assert other.fleet.responses.engine_of(name, other.now) == home
        assert one.fleet.responses.engine_of(name, one.now) == home
    assert in_flight(other) == in_flight(one) == {"b": "default/pod-1"}
    # That `b` was sent to another endpoint at first comes too late, if it does.
    late = ({"REPEATED": 1}, 6) if early else ({}, 8)
    assert (other.tell(), other.dropped, other.reader.applied) == ([], *late)


def test_all_know_the_endpoint_of_each_stage():
    one, other = Replica(1, pods=3), Replica(2, pods=3)
    pods = [EndpointId(f"default/pod-{number}") for number in range(3)]
    one.apply(Admitted(one.quote("a", PROMPTS[0]), *pods))
    settle(one, other)
    assert [each.pod.endpoint.id for each in other.in_flight("a").parts] == pods


def test_that_requests_are_served_where_they_were_sent_is_told_once_a_second():
    one, other = Replica(1), Replica(2)

    def serve(name):
        one.admit(name, PROMPTS[0], pod="pod-1")
        one.apply(Served(RequestId(name), one.pod("pod-1").endpoint.target))
        one.apply(Finished(RequestId(name)))
        messages = one.tell()
        for message in messages:
            exchange(one, other, message)
        return [type(fact) for message in messages for fact in facts_of(message)]

    ends = [AdmittedFact, FinishedFact]
    assert serve("a") == [AdmittedFact, ServedFact, FinishedFact]
    assert (serve("b"), serve("c")) == (ends, ends)
    one.now += 1.0
    assert serve("d") == [AdmittedFact, ServedFact, FinishedFact]
    assert in_flight(other) == in_flight(one) == {}


def test_where_a_request_is_served_after_it_was_told_again_is_told():
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    one.tell()
    one.apply(Served(RequestId("a"), one.pod("pod-1").endpoint.target))
    one.tell()
    exchange(one, other, one.heartbeat())
    assert in_flight(other) == {"a": "default/pod-1"}
    one.apply(Served(RequestId("a"), one.pod("pod-0").endpoint.target))
    settle(one, other)
    assert in_flight(other) == in_flight(one) == {"a": "default/pod-0"}
    for pod in ("pod-1", "pod-0", "pod-1"):
        one.apply(Served(RequestId("a"), one.pod(pod).endpoint.target))
        settle(one, other)
        assert in_flight(other) == in_flight(one) == {"a": f"default/{pod}"}


def test_all_know_who_fails_where_a_gateway_tries_again():
    one, other = Replica(1), Replica(2)
    one.admit("good", PROMPTS[0], pod="pod-0")
    one.apply(Finished(RequestId("good")))
    for name, prompt, retried in zip("abcd", PROMPTS, (True, True, False, True), strict=True):
        one.now += 0.1
        one.admit(name, prompt, pod="pod-0")
        one.apply(Served(RequestId(name), one.pod("pod-1").endpoint.target, retried=retried))
        one.apply(Finished(RequestId(name)))
    settle(one, other)
    assert [each.pod("pod-0").outlier.failures for each in (one, other)] == [3, 3]


def test_a_request_that_is_left_unobserved_is_nobodys_business_any_more():
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    one.apply(Unobserved(RequestId("a"), begun=True))
    settle(one, other)
    assert other.in_flight("a").unobserved
    assert one.writer.heartbeat(0).in_flight == 0
    assert other.hear(one.heartbeat()) is not None
    one.now += 1000
    one.ask()
    assert one.fleet.in_flight == {}
    assert one.tell() == []


def test_a_request_that_is_sent_again_is_where_it_was_sent_last():
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    one.admit("a", PROMPTS[0], pod="pod-1")
    settle(one, other)
    assert in_flight(other) == {"a": "default/pod-1"}
    exchange(one, other, one.heartbeat())
    assert in_flight(other) == {"a": "default/pod-1"}
    one.apply(Finished(RequestId("a")))
    settle(one, other)
    assert other.fleet.in_flight == {}


def test_who_served_and_who_is_left_out_is_told():
    one, other = Replica(1, pods=3), Replica(2, pods=3)
    one.admit("a", PROMPTS[0])
    one.apply(Served(RequestId("a"), one.pod("pod-1").endpoint.target))
    one.apply(Ejected(EndpointId("default/pod-2"), EjectionReason.FAILURES, 30.0))
    settle(one, other)
    assert in_flight(other) == {"a": "default/pod-1"}
    assert other.pod("pod-2").outlier.ejected is EjectionReason.FAILURES
    one.apply(Returned(EndpointId("default/pod-2")))
    settle(one, other)
    assert other.pod("pod-2").outlier.ejected is None


def test_a_response_that_a_prompt_repeats_is_told():
    """The first turn at one, the second at the other: both know the blocks of the response."""
    one, other = Replica(1), Replica(2)
    first = text(400)
    one.admit("a", first)
    one.apply(FirstToken(RequestId("a")))
    one.apply(Finished(RequestId("a"), Usage(400, 300, 0)))
    settle(one, other)
    prompt = held(one)[POD]
    second = first + text(300, seed="x") + text(100, seed="y")
    other.admit("b", second, pod="pod-1")
    settle(other, one)
    assert held(one) == held(other)
    assert held(one)[POD] > prompt
    assert one.cached(second) == other.cached(second)  # each finds that itself, too


def test_an_endpoint_that_is_not_known_or_is_another_engine_by_now_is_passed_over():
    one, other = Replica(1, pods=3), Replica(2)
    one.admit("a", PROMPTS[0], pod="pod-2")
    settle(one, other)
    assert other.dropped == {"UNKNOWN_ENDPOINT": 1}
    other.add("pod-0", "10.0.0.77")
    one.admit("b", PROMPTS[0])
    settle(one, other)
    assert other.dropped == {"UNKNOWN_ENDPOINT": 1, "STALE_ENDPOINT": 1}
    assert other.fleet.in_flight == {}


def test_a_cache_that_was_cleared_is_that_of_the_engine_that_was_there_then():
    one, other = Replica(1), Replica(2)
    one.apply(CacheCleared(POD))
    other.add("pod-0", "10.0.0.77")
    other.admit("a", PROMPTS[0])
    other.apply(Finished(RequestId("a")))
    before = held(other)
    settle(one, other)
    assert held(other) == before
    assert other.dropped == {"STALE_ENDPOINT": 1}
    one.add("pod-0", "10.0.0.77")
    one.apply(CacheCleared(POD))
    settle(one, other)
    assert before[POD]
    assert held(other)[POD] == set()


def test_without_peers_numbers_are_kept_and_nothing_is_written():
    one, other = Replica(1), Replica(2)
    for name in "abc":
        one.admit(name, PROMPTS[0])
    one.apply(Finished(RequestId("b")))
    one.apply(Ejected(POD, EjectionReason.FAILURES, 30.0))
    one.writer.skip()
    assert one.tell() == []
    assert one.writer.heartbeat(0).in_flight == 2
    exchange(one, other, one.heartbeat())
    assert in_flight(other) == in_flight(one) == {"a": POD, "c": POD}


def test_many_facts_are_told_in_several_messages():
    one, other = Replica(1), Replica(2)
    for number in range(700):
        one.admit(f"r{number}", text(20, seed=str(number)))
    messages = one.tell()
    assert len(messages) > 1
    assert one.writer.written == 700
    for message in messages:
        exchange(one, other, message)
    assert in_flight(other) == in_flight(one)


def test_long_prompts_are_told_one_by_one():
    """Many in one message could be longer than what is read."""
    one = Replica(1)
    for name in "ab":
        one.admit(name, [ord(name), *range(1 << 20)])
    assert [len(facts_of(message)) for message in one.tell()] == [1, 1]


def test_what_is_told_of_requests_and_endpoints_that_are_gone_costs_nobody_else():
    one, other = Replica(1, pods=3), Replica(2, pods=3)
    one.apply(Served(RequestId("gone"), one.pod("pod-1").endpoint.target))
    one.apply(FirstToken(RequestId("gone")))
    one.admit("a", PROMPTS[0], pod="pod-2")
    one.apply(CacheCleared(EndpointId("default/pod-2")))
    one.apply(EndpointRemoved(EndpointId("default/pod-2")))
    one.admit("b", PROMPTS[0])
    settle(one, other)
    assert other.dropped == {}
    assert in_flight(other) == {"b": POD}


def test_requests_are_told_again_as_far_as_they_are_asked_for():
    one, other = Replica(1), Replica(2)
    for name in "abc":
        one.admit(name, PROMPTS[0])
    one.tell()
    exchange(one, other, one.writer.to_one(list(one.writer.admissions([2, 7])), one.now))
    assert in_flight(other) == {"b": POD}
    asked = other.hear(one.hear(other.hear(one.heartbeat())))
    assert facts_of(asked) == [RequestsQuery([1, 3])]


@pytest.mark.parametrize(
    "event",
    [
        Finished(RequestId("a"), Usage(750, 20, 512, implausible=True), 19),
        Finished(RequestId("a"), Usage(750, 20, None), 0),
        Finished(RequestId("a"), None, 7),
        Aborted(RequestId("a"), 5, failure=Failure.GATEWAY, served=True),
        Aborted(RequestId("a"), 0, refused=True, failure=Failure.BUSY, served=True),
        Aborted(RequestId("a"), 0, computed=128),
        Unobserved(RequestId("a"), begun=True),
        Generated(RequestId("a"), 3),
    ],
)
def test_what_is_seen_of_a_request_arrives_as_it_was(event):
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    one.writer.note(event, one.now, guessed=False)
    (message,) = one.tell()
    assert other.reader.read(message, other.now).events[1:] == [event]


def test_versions_that_do_not_know_busy_servers_can_read_that_one_refused_a_request():
    one = Replica(1)
    one.admit("a", PROMPTS[0])
    one.tell()
    one.apply(Aborted(RequestId("a"), refused=True, failure=Failure.BUSY, served=True))
    (message,) = one.tell()
    (fact,) = facts_of(message)
    assert (fact.refused, fact.failure, fact.served) == (True, None, True)


def test_a_list_of_requests_that_are_not_in_flight_ends_those_of_that_peer_alone():
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    other.admit("b", PROMPTS[0])
    settle(one, other)
    other.hear(one.writer.to_one([InFlightReply([])], one.now))
    assert in_flight(other) == {"b": POD}
