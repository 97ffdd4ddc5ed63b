"""The requests of one peer: which stage each is in, and how a set of them is told apart."""

from hypothesis import given
from hypothesis import strategies as st

from epp.model.request import RequestId
from epp.protocol.replicas.facts import FinishedFact, FirstTokenFact, ServedFact
from epp.protocol.replicas.requests_of_peer import RequestsOfPeer, digest_of

REMEMBERED = 8192


def test_the_last_thousands_that_are_over_are_remembered_and_no_more():
    requests = RequestsOfPeer()
    numbers = range(3 * REMEMBERED)
    for number in numbers:
        name = RequestId(f"request {number}")
        assert requests.admit(number, name)
        assert requests.take(FinishedFact(number)) == name
        assert not requests.admit(number, name)
    late = [number for number in numbers if requests.is_over(number)]
    assert late[-REMEMBERED:] == list(numbers[-REMEMBERED:])
    assert len(late) <= 2 * REMEMBERED
    assert requests.take(FirstTokenFact(late[0])) is None


def test_a_stage_that_comes_after_a_later_one_changes_nothing():
    requests = RequestsOfPeer()
    assert requests.admit(7, RequestId("request"))
    assert requests.take(FinishedFact(7)) == "request"
    assert requests.take(FirstTokenFact(7)) is None
    assert requests.early(7) == ()


def test_of_a_request_that_is_sent_again_the_last_time_counts_whichever_is_told_first():
    requests, name = RequestsOfPeer(), RequestId("request")
    assert requests.admit(8, name)
    assert requests.take(ServedFact(7, "10.0.0.1:8000")) is None
    assert not requests.admit(7, name)
    assert requests.early(7) == ()
    assert list(requests.in_flight) == [8]
    assert requests.take(FinishedFact(7)) is None
    assert requests.take(FirstTokenFact(8)) == name
    assert not requests.admit(7, name)
    assert requests.admit(9, name)
    assert list(requests.in_flight) == [9]


@given(st.sets(st.integers(0, (1 << 40) - 1), max_size=6), st.data())
def test_sets_of_numbers_are_told_apart(numbers, data):
    few = st.sets(st.integers(0, 30), max_size=6)
    first, second = data.draw(few), data.draw(few)
    told = [(len(each), digest_of(each)) for each in (first, second)]
    assert (told[0] == told[1]) == (first == second)
    assert digest_of(sorted(numbers)) == digest_of(sorted(numbers, reverse=True))
    assert 0 <= digest_of(numbers) < 1 << 40
