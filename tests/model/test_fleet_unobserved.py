"""What the fleet believes of requests whose responses are not observed."""

import pytest

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.request import RequestId, Usage
from epp.model.request_events import Aborted, Finished, FirstToken, Unobserved
from tests.model.invariants import check_invariants
from tests.model.rig import LONG, Rig, predicted
from tests.strategies import text


def leave(rig, name, identity, *, after=0.1, prompt=LONG, **more):
    """Send a request, see its first token, and look away."""
    rig.send(name, identity, prompt, **more)
    rig.now += after
    rig.apply(FirstToken(RequestId(identity)))
    rig.apply(Unobserved(RequestId(identity)))


def used(rig, name):
    """Return the tokens of a cache that requests under way hold."""
    cache = rig.pod(name).scheduler.cache
    return cache.capacity - cache.free


def teach(rig, tokens, seconds):
    """Show the fleet one answer of so many tokens that took so long."""
    rig.send("pod-1", "taught", "a prompt")
    rig.apply(FirstToken(RequestId("taught")))
    rig.now += seconds
    rig.apply(Finished(RequestId("taught"), Usage(9, tokens)))


def test_an_unobserved_request_ends_after_the_expected_length():
    rig = Rig()
    teach(rig, 100, 9.9)
    leave(rig, "pod-0", "r1")
    held = used(rig, "pod-0")
    assert rig.ask()["pod-0"].requests == 1
    assert rig.queued_seconds()["pod-0"] == 0
    for _ in range(18):
        rig.now += 0.5
        assert rig.ask()["pod-0"].requests == 1
    assert rig.in_flight("r1").unobserved  # guesses are no signs of life
    assert 64 <= used(rig, "pod-0") - held <= 96
    rig.now += 1.0
    assert rig.ask()["pod-0"].requests == 0
    assert (used(rig, "pod-0"), rig.fleet.in_flight) == (0, {})
    assert rig.cached(LONG)["pod-0"] == predicted(1000)


def test_all_answers_of_an_unobserved_request_go_on_side_by_side():
    """Four answers of about 100 tokens, of which a guess in between knows 64 or more."""
    rig = Rig()
    teach(rig, 100, 9.9)
    leave(rig, "pod-0", "r1", n=4)
    held = used(rig, "pod-0")
    for _ in range(18):
        rig.now += 0.5
        rig.ask()
    assert 4 * 64 <= used(rig, "pod-0") - held <= 4 * 96
    rig.now += 1.0
    assert (rig.ask()["pod-0"].requests, used(rig, "pod-0")) == (0, 0)


def test_an_unobserved_request_starts_after_the_queued_prefill():
    rig = Rig()
    rig.send("pod-0", "r0", LONG)
    owed = rig.queued_seconds()["pod-0"]
    rig.send("pod-0", "r1", LONG, stream=False, max_tokens=11)
    rig.apply(
        Unobserved(RequestId("r0")),
    )
    rig.apply(Unobserved(RequestId("r1")))
    assert rig.queued_seconds()["pod-0"] > owed
    rig.now += owed + 0.001
    assert rig.ask()["pod-0"].requests == 2
    rig.now += 0.5
    assert rig.ask()["pod-0"].requests == 1  # eleven tokens at a default pace
    rig.now += 10
    assert (rig.queued_seconds()["pod-0"], rig.ask()["pod-0"].requests) == (0, 0)


@pytest.mark.parametrize("late", [Finished(RequestId("r1")), Aborted(RequestId("r1"))])
def test_an_observed_end_wins_over_a_guessed_one(late):
    rig = Rig()
    leave(rig, "pod-0", "r1")
    rig.apply(late)
    assert (rig.ask()["pod-0"].requests, len(rig.fleet._unobserved)) == (0, 0)


def test_a_repeated_unobserved_event_changes_nothing():
    rig = Rig()
    leave(rig, "pod-0", "r1", max_tokens=50)
    rig.now += 0.9
    rig.apply(Unobserved(RequestId("r1")))
    rig.now += 0.1
    assert rig.ask()["pod-0"].requests == 0


def test_a_page_without_numbers_of_requests_ends_none():
    """Triton reports those that wait alone."""
    rig = Rig()
    leave(rig, "pod-0", "r1", max_tokens=50)
    rig.now += 0.5
    rig.report("pod-0", counted=False, at=rig.now)
    assert rig.ask()["pod-0"].requests == 1


def test_a_request_that_the_engine_still_runs_does_not_end():
    rig = Rig()
    leave(rig, "pod-0", "r1", max_tokens=50)
    rig.now += 0.5
    for _ in range(4):
        rig.report("pod-0", running=1, at=rig.now)
        rig.now += 0.9
        assert rig.ask()["pod-0"].requests == 1
    rig.report("pod-0", running=0, at=rig.now)
    assert rig.ask()["pod-0"].requests == 0
    assert used(rig, "pod-0") == 0


def test_where_the_engine_runs_fewer_the_first_due_ends():
    rig = Rig()
    for number in range(4):
        leave(rig, "pod-0", f"r{number}")
    rig.send("pod-0", "in line", text(500, "y"))  # not there yet, as far as is known
    rig.now += 0.1
    rig.report("pod-0", running=2, waiting=1, at=rig.now)
    assert sorted(rig.fleet.in_flight) == ["in line", "r1", "r2", "r3"]


@pytest.mark.parametrize("at", [float("-inf"), 5.0])
def test_a_page_without_counts_ends_nothing(at):
    rig = Rig()
    leave(rig, "pod-0", "r1")
    rig.report("pod-0", at=at)
    rig.report("pod-0", at=at)
    assert rig.ask()["pod-0"].requests == 1


def test_a_removed_endpoint_ends_its_unobserved_requests():
    rig = Rig()
    leave(rig, "pod-0", "r1")
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    rig.now += 100
    rig.ask()
    assert rig.fleet.in_flight == {}


def gone(rig):
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))


def gone_and_back(rig):
    gone(rig)
    rig.add("pod-0", "10.0.0.9", uid="another")


def replaced(rig):
    rig.add("pod-0", "10.0.0.9", uid="another")


def relabelled(rig):
    rig.add("pod-0", "10.0.0.1", labels={"version": "2"})


@pytest.mark.parametrize(
    ("happens", "left"), [(gone, []), (gone_and_back, []), (replaced, []), (relabelled, ["r1"])]
)
def test_unobserved_requests_end_with_the_engine_that_they_were_at(happens, left):
    rig = Rig()
    leave(rig, "pod-0", "r1")
    happens(rig)
    assert list(rig.fleet._unobserved._requests) == list(rig.fleet.in_flight) == left
    check_invariants(rig.fleet)


def test_what_a_pod_of_the_same_name_runs_is_counted_by_its_own_requests():
    rig = Rig()
    for number in range(5):
        leave(rig, "pod-0", f"before {number}")
    replaced(rig)
    for number in range(5):
        leave(rig, "pod-0", f"r{number}")
    rig.now += 0.5
    rig.report("pod-0", running=2, at=rig.now)
    assert rig.pod("pod-0").ledger.requests == 2


def test_a_conversation_goes_on_where_it_was_left():
    rig = Rig()
    leave(rig, "pod-0", "r1", max_tokens=50)
    rig.now += 2
    rig.ask()
    whole = rig.cached(LONG)["pod-0"]
    assert whole == predicted(1000)
    assert RequestId("r1") not in rig.fleet.in_flight
