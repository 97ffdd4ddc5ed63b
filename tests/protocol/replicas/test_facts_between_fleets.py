"""Replicas that tell each other what they see believe the same; loss and disorder are mended."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId, Target
from epp.model.events import Ejected, EjectionReason, Returned
from epp.model.kv_changes import CacheCleared
from epp.model.request import RequestId, Usage
from epp.model.request_events import (
    Aborted,
    Failure,
    Finished,
    FirstToken,
    Generated,
    ResponseNamed,
    Served,
    Unobserved,
)
from epp.protocol.replicas.fact_reader import LEASE_SECONDS
from epp.protocol.replicas.facts import (
    AdmittedFact,
    FinishedFact,
    InFlightReply,
    LeavingFact,
    ServedFact,
)
from epp.protocol.replicas.messages import read_facts, read_message
from epp.protocol.replicas.requests_of_peer import digest_of
from epp.values import replaced
from tests.model.invariants import check_invariants
from tests.protocol.replicas.pair import POD, Replica, exchange, held, in_flight, settle
from tests.strategies import text

PROMPTS = [text(400, seed=seed) + text(200, seed=more) for seed in "ab" for more in "cd"]
ENDS = (
    Finished(RequestId(""), Usage(650, 40, 320)),
    Finished(RequestId(""), None, 12),
    Aborted(RequestId(""), 3),
    Aborted(RequestId(""), refused=True),
    Aborted(RequestId(""), failure=Failure.ERROR, served=True),
)


def facts_of(message):
    return read_facts(read_message(message))[0]


def named(event, request):
    return replaced(event, request_id=RequestId(request))


@st.composite
def scripts(draw, *, served=False):
    """Requests with what is seen of each, in an order in which it can be seen.

    With `served` also who serves them, which is told as a request under another number.
    """
    begun, script, answered = [], [], set()
    for number in range(draw(st.integers(1, 8))):
        name = f"r{number}"
        begun.append(name)
        pod = draw(st.sampled_from(["pod-0", "pod-1"]))
        script.append(("admit", name, draw(st.sampled_from(PROMPTS)), pod))
        for other in draw(st.lists(st.sampled_from(begun), max_size=3, unique=True)):
            said = ["first", "grow", "end", "end"]
            if served and other not in answered:
                said.append("serve")
            what = draw(st.sampled_from(said))
            if what != "serve":  # who serves it is seen before what comes of it
                answered.add(other)
            script.append((what, other, draw(st.sampled_from(ENDS)), draw(st.integers(1, 90))))
            if what == "end":
                begun.remove(other)
    return script


def play(replica, script, messages_apart=1):
    for position, (what, name, more, last) in enumerate(script):
        replica.now += 0.01
        match what:
            case "admit":
                replica.admit(name, more, pod=last)
            case "serve":
                target = replica.pod(f"pod-{last % 2}").endpoint.target
                replica.apply(Served(RequestId(name), target, retried=last % 3 == 0))
            case "first":
                replica.apply(FirstToken(RequestId(name)))
            case "grow":
                replica.apply(Generated(RequestId(name), last))
            case _:
                replica.apply(named(more, name))
        if position % messages_apart == 0:
            replica.told += replica.writer.messages()


@given(scripts(served=True), st.integers(1, 4))
def test_who_hears_everything_in_order_predicts_the_same(script, apart):
    one, other = Replica(1), Replica(2)
    play(one, script, apart)
    for message in one.tell():
        other.now = one.now
        exchange(one, other, message)
    assert in_flight(other) == in_flight(one)
    assert held(other) == held(one)
    for prompt in PROMPTS:
        assert other.cached(prompt) == one.cached(prompt)
    check_invariants(other.fleet)
    assert other.dropped == {}


@settings(deadline=None)
@given(st.data(), scripts())
def test_any_order_any_number_of_times_comes_to_the_same_requests(data, script):
    one, other = Replica(1), Replica(2)
    play(one, script)
    sent = one.tell()
    for message in data.draw(st.permutations(sent + sent)):
        other.now = one.now
        exchange(one, other, message)
    assert in_flight(other) == in_flight(one)
    assert set(other.dropped) <= {"REPEATED"}
    check_invariants(other.fleet)
    exchange(one, other, one.heartbeat())
    assert in_flight(other) == in_flight(one)


@settings(deadline=None)
@given(st.permutations(range(6)), st.booleans())
def test_requests_that_are_sent_again_are_where_they_were_sent_last_in_any_order(order, beats):
    """Also those that are told once more, after a silence or because they were lost."""
    one, other = Replica(1), Replica(2)
    for number in range(3):
        one.admit(f"r{number}", PROMPTS[number], pod="pod-0")
    for number in range(3):
        one.admit(f"r{number}", PROMPTS[number], pod="pod-1")
    sent = one.tell()
    messages = [one.writer.to_all([fact], one.now) for each in sent for fact in facts_of(each)]
    for position in order:
        exchange(one, other, messages[position])
        if beats:
            exchange(one, other, one.heartbeat())
    exchange(one, other, one.heartbeat())
    assert in_flight(other) == in_flight(one) == dict.fromkeys(("r0", "r1", "r2"), "default/pod-1")
    check_invariants(other.fleet)


@settings(deadline=None)
@given(st.data(), scripts(served=True))
def test_what_was_lost_is_found_with_the_next_beat(data, script):
    one, other = Replica(1), Replica(2)
    play(one, script)
    for message in one.tell():
        if data.draw(st.booleans()):
            exchange(one, other, message)
    other.now = one.now
    exchange(one, other, one.heartbeat())
    assert in_flight(other) == in_flight(one)
    exchange(one, other, one.heartbeat())
    check_invariants(other.fleet)


def test_lost_requests_whose_numbers_add_up_to_the_same_are_found():
    one, other = Replica(1), Replica(2)
    for number in range(6):
        one.admit(f"r{number}", PROMPTS[0])
        lost = number in {2, 4}
        for message in one.tell():
            if not lost:
                exchange(one, other, message)
    for name in ("r1", "r5"):
        one.apply(Finished(RequestId(name), Usage(650, 40, 320)))
    one.tell()
    exchange(one, other, one.heartbeat())
    assert in_flight(other) == in_flight(one)


@given(st.sets(st.integers(0, (1 << 40) - 1), max_size=6), st.data())
def test_sets_of_numbers_are_told_apart(numbers, data):
    few = st.sets(st.integers(0, 30), max_size=6)
    first, second = data.draw(few), data.draw(few)
    told = [(len(each), digest_of(each)) for each in (first, second)]
    assert (told[0] == told[1]) == (first == second)
    assert digest_of(sorted(numbers)) == digest_of(sorted(numbers, reverse=True))
    assert 0 <= digest_of(numbers) < 1 << 40


def test_both_tell_and_nothing_comes_back():
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    other.admit("b", PROMPTS[1], pod="pod-1")
    settle(one, other)
    assert in_flight(one) == in_flight(other) == {"a": POD, "b": "default/pod-1"}
    assert one.tell() == other.tell() == []
    assert held(one) == held(other)


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


def test_what_is_told_of_a_request_while_its_chain_is_asked_for_is_not_lost():
    one, late = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    one.tell()
    one.admit("b", PROMPTS[0])
    (message,) = one.tell()
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
    one, late = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    one.tell()
    one.admit("b", PROMPTS[0])
    (message,) = one.tell()
    asked = late.hear(message)
    one.forget_chains()
    exchange(late, one, asked)
    assert (in_flight(late), late.dropped) == ({}, {"NO_CHAIN": 1})


def test_a_chain_that_is_not_told_in_time_costs_its_request():
    one, late = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    one.tell()
    one.admit("b", PROMPTS[0])
    (message,) = one.tell()
    late.hear(message)
    late.now += 2
    late.lapse()
    assert late.dropped == {"NO_CHAIN": 1}
    late.now = one.now = late.now + 1
    exchange(one, late, one.heartbeat())
    assert in_flight(late) == in_flight(one)


def test_requests_of_a_peer_that_is_gone_end_as_those_that_nobody_observes():
    """They are counted once: the fleet guesses their ends, and the engine's count corrects it."""
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0], max_tokens=10)
    settle(one, other)
    other.now += LEASE_SECONDS + 1
    other.lapse()
    assert other.reader.present == 0
    assert other.in_flight("a").unobserved
    assert other.pod("pod-0").ledger.requests == 1
    other.now += 600
    other.ask()
    assert other.fleet.in_flight == {}
    assert other.pod("pod-0").ledger.requests == 0
    assert other.tell() == []  # guesses of others' requests are not told


def test_a_peer_that_was_silent_and_comes_back_is_believed_again():
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    settle(one, other)
    other.now = one.now = one.now + LEASE_SECONDS + 1
    other.lapse()
    exchange(one, other, one.heartbeat())
    assert in_flight(other) == {"a": POD}
    one.apply(Finished(RequestId("a"), Usage(600, 5, 0)))
    settle(one, other)
    assert other.fleet.in_flight == {}
    assert other.pod("pod-0").ledger.requests == 0


def test_one_that_leaves_says_so():
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    settle(one, other)
    other.hear(one.writer.to_all([LeavingFact()], one.now))
    assert other.reader.present == 0
    assert other.in_flight("a").unobserved


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
    one, other = Replica(1, pods=1), Replica(2, pods=1)
    first = text(400)
    one.admit("a", first)
    one.apply(FirstToken(RequestId("a")))
    one.apply(Finished(RequestId("a"), Usage(400, 300, 0)))
    settle(one, other)
    second = first + text(300, seed="x") + text(100, seed="y")
    other.admit("b", second)
    settle(other, one)
    assert one.cached(second) == other.cached(second)
    assert held(one) == held(other)


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
    one.writer.skip()
    assert one.tell() == []
    exchange(one, other, one.heartbeat())
    assert in_flight(other) == in_flight(one) == {"a": POD, "c": POD}


def test_many_facts_are_told_in_several_messages():
    one, other = Replica(1), Replica(2)
    for number in range(700):
        one.admit(f"r{number}", text(20, seed=str(number)))
    messages = one.tell()
    assert len(messages) > 1
    for message in messages:
        exchange(one, other, message)
    assert in_flight(other) == in_flight(one)


def test_the_lag_is_known_once_clocks_were_compared():
    """The clocks of two machines have nothing to do with each other."""
    one, other = Replica(1), Replica(2)
    other.now = one.now + 5000
    one.admit("a", PROMPTS[0])
    (message,) = one.tell()
    assert other.reader.read(message, other.now).lag is None
    answer = one.hear(other.heartbeat())
    other.now += 0.002
    other.hear(answer)
    one.now += 0.002
    one.admit("b", PROMPTS[0])
    one.now, other.now = one.now + 0.001, other.now + 0.001
    (message,) = one.tell()
    assert other.reader.read(message, other.now).lag == pytest.approx(0.001, abs=0.0011)


def test_a_list_of_requests_that_are_not_in_flight_ends_those_of_that_peer_alone():
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    other.admit("b", PROMPTS[0])
    settle(one, other)
    other.hear(one.writer.to_one([InFlightReply([])], one.now))
    assert in_flight(other) == {"b": POD}


def test_what_is_under_way_from_others_is_their_rate_times_their_lag():
    """40 requests a second, each heard of 20 ms later: 0.8 of them at any moment."""
    one, other = Replica(1), Replica(2)
    exchange(other, one, other.heartbeat())
    answered = one.hear(other.heartbeat())
    other.hear(answered)
    assert other.reader.unseen(other.now) == (0.0, 1, 2)
    for number in range(80):
        one.now += 0.025
        other.now = one.now + 0.02
        one.admit(f"request {number}", text(20, seed=str(number)))
        for message in one.tell():
            other.hear(message)
    requests, *place = other.reader.unseen(other.now)
    assert requests == pytest.approx(0.8, rel=0.1)
    assert place == [1, 2]  # one of the two has a lower number
    assert other.reader.unseen(other.now + 2)[0] < 0.001
    assert one.reader.unseen(one.now) == (0.0, 0, 2)
    other.now += 11
    other.lapse()
    assert other.reader.unseen(other.now) == (0.0, 0, 1)
