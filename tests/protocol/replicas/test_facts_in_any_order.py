"""Whatever is told twice, late, in another order or not at all, replicas believe the same."""

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.request import RequestId, Usage
from epp.model.request_events import Aborted, Failure, Finished, FirstToken, Generated, Served
from epp.values import replaced
from tests.model.invariants import check_invariants
from tests.protocol.replicas.pair import PROMPTS, Replica, exchange, facts_of, held, in_flight

ENDS = (
    Finished(RequestId(""), Usage(650, 40, 320)),
    Finished(RequestId(""), None, 12),
    Aborted(RequestId(""), 3),
    Aborted(RequestId(""), refused=True),
    Aborted(RequestId(""), failure=Failure.ERROR, served=True),
)


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
