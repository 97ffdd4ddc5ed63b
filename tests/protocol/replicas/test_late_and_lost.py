"""Messages that are lost, or come late: who served, and lists of requests."""

import pytest

from epp.model.request import Prompt, RequestId, Usage
from epp.model.request_events import Finished, Served
from epp.protocol.replicas.facts import InFlightReply
from epp.protocol.replicas.messages import LONGEST
from tests.protocol.growth import too_steep
from tests.protocol.replicas.pair import POD, Replica, exchange, in_flight, settle
from tests.strategies import text


@pytest.mark.parametrize("told", [False, True])
def test_long_prompts_are_told_again_in_messages_that_can_be_read(told):
    one, other, lengths = Replica(1), Replica(2), list[int]()
    for number in range(36):
        ids = number.to_bytes(4, "little") + bytes(4 << 19)
        one.admit(str(number), prompts=(Prompt(ids, exact=True),))
        if told:
            one.tell()  # to others
        else:
            one.writer.skip()
    rounds = 0
    while in_flight(other) != in_flight(one):
        rounds += 1
        assert rounds <= 12
        message, there, back = one.heartbeat(), other, one
        while message is not None:
            lengths.append(len(message))
            message, there, back = there.hear(message), back, there
        for each in (one, other):
            each.now += 1.0
        other.lapse()
    assert max(lengths) < LONGEST < sum(lengths)


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_who_served_is_found_out_though_that_message_is_lost(over, written):
    """What is seen of a response then counts for the endpoint that served it, or for none."""
    one, other = Replica(1), Replica(2)
    for number in range(5):
        prompt, name = text(3000, seed=f"{number}x"), f"moved {number}"
        one.admit(f"first {number}", prompt)
        one.apply(Finished(RequestId(f"first {number}"), Usage(750, 1, 0)))
        one.admit(name, prompt)
        settle(one, other)
        one.apply(Served(RequestId(name), one.pod("pod-1").endpoint.target, retried=True))
        if written:
            one.tell()
        else:
            one.writer.skip()
        if over:
            one.apply(Finished(RequestId(name), Usage(750, 1, 0)))
            settle(one, other)
        exchange(one, other, one.heartbeat())
        assert in_flight(other) == in_flight(one) == ({} if over else {name: "default/pod-1"})
        one.apply(Finished(RequestId(name), Usage(750, 1, 0)))
        settle(one, other)
    assert [each.pod("pod-0").cache_stats().trust for each in (one, other)] == [1, 1]


def test_a_list_that_comes_late_ends_nothing_that_was_told_after_it():
    one, other = Replica(1), Replica(2)
    one.admit("lost", text(400, seed="a"))
    one.tell()
    reply = one.hear(other.hear(one.heartbeat()))
    one.admit("new", text(400, seed="b"))
    for message in one.tell():
        other.hear(message)
    exchange(other, one, other.hear(reply))
    assert in_flight(other) == in_flight(one) == {"lost": POD, "new": POD}


@pytest.mark.parametrize("requests", [0, 1])
def test_a_list_ends_what_was_told_before_it(requests):
    """Also one of a version that does not say up to which request it goes."""
    one, other = Replica(1), Replica(2)
    one.admit("a", text(400))
    for message in one.tell():
        other.hear(message)
    one.apply(Finished(RequestId("a")))
    one.tell()
    reply = one.writer.in_flight() if requests else InFlightReply([])
    other.hear(one.writer.to_one([reply], one.now))
    assert in_flight(other) == {}


def test_a_list_of_many_requests_takes_time_in_proportion():
    one, others = Replica(1), dict[bytes, Replica]()

    def told(size):
        others[message := listed(size // 8)] = other = Replica(2)
        other.hear(one.heartbeat())
        (peer,) = other.reader.peers.values()
        for number in range(1, size // 8 + 1):
            assert peer.requests.admit(number, RequestId(str(number)))
        return message

    def listed(count):
        return one.writer.to_one([InFlightReply(list(range(1, count + 2)))], one.now)

    def read(message):
        other = others[message]
        assert len(other.reader.read(message, other.now).answers) == 1

    assert too_steep(read, told) == ""
