"""What is believed of a peer: its lag, whether it is there, and its requests once it is gone."""

import pytest

from epp.model.request import RequestId, Usage
from epp.model.request_events import Finished
from epp.protocol.replicas.fact_reader import LEASE_SECONDS
from epp.protocol.replicas.facts import HeartbeatSeen, LeavingFact
from epp.protocol.replicas.peers import Peer
from tests.protocol.replicas.pair import POD, PROMPTS, Replica, exchange, in_flight, settle
from tests.strategies import text


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
    assert other.reader.peers[one.number].losses == 1  # what it saw may not be known here
    one.apply(Finished(RequestId("a"), Usage(600, 5, 0)))
    settle(one, other)
    assert other.fleet.in_flight == {}
    assert other.pod("pod-0").ledger.requests == 0


def test_a_peer_that_stays_silent_is_gone_and_then_forgotten():
    one, other = Replica(1), Replica(2)
    exchange(one, other, one.heartbeat())
    for seconds, present, losses in ((9, 1, [0]), (2, 0, [1]), (60, 0, [1]), (600, 0, [])):
        other.now += seconds
        other.lapse()
        peers = other.reader.peers.values()
        assert (other.reader.present, [each.losses for each in peers]) == (present, losses)


def test_one_that_leaves_says_so():
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    settle(one, other)
    other.hear(one.writer.to_all([LeavingFact()], one.now))
    assert other.reader.present == 0
    assert other.in_flight("a").unobserved


def test_a_chain_that_comes_after_its_peer_has_left_brings_no_request():
    """Broadcasts and answers may overtake each other."""
    one, other = Replica(1), Replica(2)
    one.admit("a", PROMPTS[0])
    one.tell()  # is lost
    one.admit("b", PROMPTS[0] + PROMPTS[1])
    (message,) = one.tell()
    chain = one.hear(other.hear(message))
    other.hear(one.writer.to_all([LeavingFact()], one.now))
    other.hear(chain)
    assert other.fleet.in_flight == {}


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
    beat = other.heartbeat()
    one.now, other.now = one.now + 5, other.now + 5  # paused meanwhile: it shows little
    other.hear(one.hear(beat))
    one.admit("c", PROMPTS[0])
    (message,) = one.tell()
    assert other.reader.read(message, other.now).lag == pytest.approx(0.001, abs=0.0011)


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


def test_a_peer_that_left_stays_away():
    """Of what comes late of it, nothing stays in flight."""
    one, other = Replica(1), Replica(2)
    other.hear(one.heartbeat())
    late = one.writer.to_one([HeartbeatSeen(one.now, one.now)], one.now)
    one.admit("a", text(400))
    (admitted,) = one.tell()
    other.hear(one.writer.to_all([LeavingFact()], one.now))
    other.hear(late)
    assert other.reader.present == 0
    other.hear(admitted)
    assert other.reader.present == 0
    assert in_flight(other) == {"a": POD}
    other.now += 11
    other.lapse()
    assert in_flight(other) == {}


@pytest.mark.parametrize(
    ("sequences", "missing", "losses"),
    [
        ([1, 2, 3], 0, 0),
        ([5, 6], 0, 0),  # those before the first one were sent before this replica came
        ([5, 3], 0, 0),
        ([1, 3], 1, 1),
        ([1, 3, 2], 0, 1),
        ([1, 4, 8, 2], 4, 2),
        ([1, 3, 3, 1], 1, 1),
    ],
)
def test_messages_that_do_not_arrive_are_counted_and_their_gaps(sequences, missing, losses):
    peer = Peer(1)
    new = [peer.is_new(each) for each in sequences]
    assert (peer.missing, peer.losses) == (missing, losses)
    assert sum(new) == len(set(sequences))


def test_numbers_of_messages_are_kept_within_bounds():
    peer = Peer(1)
    assert all(peer.is_new(sequence) for sequence in range(1, 20_000))
    assert len(peer._seen) <= 10_000
    assert not any(peer.is_new(sequence) for sequence in range(1, 20_000))
    assert peer.missing == 0
