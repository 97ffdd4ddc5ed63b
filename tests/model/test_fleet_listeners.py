"""Everything that a fleet learns can be heard, and replayed into another fleet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId, Load
from epp.model.events import EndpointUpserted, Event, LoadReported
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.repeated import ResponseRepeated
from epp.model.request import Prompt, RequestId, Usage
from epp.model.request_events import (
    Aborted,
    Admitted,
    Finished,
    FirstToken,
    Generated,
    Unobserved,
)
from tests.model.invariants import check_invariants
from tests.model.rig import LONG, Rig
from tests.strategies import SECRET, endpoint, request, text

ALL = Event.__args__


def recorded(rig):
    tape = []
    rig.fleet.subscribe(ALL, lambda *heard: tape.append(heard))
    return tape


def test_listeners_are_called_once_events_took_effect():
    rig = Rig(0)
    seen = []
    rig.fleet.subscribe(
        (EndpointUpserted,), lambda event, *_: seen.append((event, len(rig.fleet.endpoints)))
    )
    rig.add("pod-0", "10.0.0.1")
    rig.report("pod-0", waiting=1)
    assert seen == [(EndpointUpserted(endpoint("pod-0", "10.0.0.1")), 1)]


def test_several_listen_to_one_kind_in_their_order():
    rig, heard = Rig(), []
    for name in "ab":
        rig.fleet.subscribe((FirstToken, Finished), lambda *_, name=name: heard.append(name))
    rig.apply(FirstToken(RequestId("r")))
    assert heard == ["a", "b"]


def test_listeners_get_guesses_with_the_time_of_the_guess():
    rig = Rig()
    tape = recorded(rig)
    rig.send("pod-0", "r1", LONG, max_tokens=100)
    rig.apply(FirstToken(RequestId("r1")))
    rig.apply(Unobserved(RequestId("r1")))
    rig.now += 100
    rig.ask()
    guessed = [(type(event), at) for event, at, guess in tape if guess]
    assert {kind for kind, _ in guessed} == {Generated, Aborted}
    assert [at for _, at in guessed] == sorted(at for _, at in guessed)
    assert 1000 < guessed[0][1] < guessed[-1][1] < rig.now


def test_listeners_get_a_count_after_the_ends_that_it_caused():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.apply(FirstToken(RequestId("r1")))
    rig.apply(Unobserved(RequestId("r1")))
    tape = recorded(rig)
    rig.now += 0.1
    rig.report("pod-0", running=0, at=rig.now)
    assert [(type(event), guess) for event, _, guess in tape] == [
        (Aborted, True),
        (LoadReported, False),
    ]


def chat(*messages):
    ends = [len("".join(messages[: n + 1]).encode()) for n in range(len(messages))]
    return Prompt("".join(messages).encode(), marks=ends)


def test_listeners_get_repeated_responses():
    rig = Rig()
    user, answer, more = text(700, "u"), text(300, "a"), text(100, "v")
    rig.send("pod-0", "r1", prompts=(chat(user),))
    rig.apply(Finished(RequestId("r1"), Usage(700, 300, 0)))
    tape = recorded(rig)
    rig.quote("r2", prompts=(chat(user, answer, more),))
    ((event, at, guessed),) = tape
    assert isinstance(event, ResponseRepeated)
    assert (event.request_id, at, guessed) == ("r1", rig.now, False)
    check_invariants(rig.fleet)


@pytest.mark.parametrize("broken", [True, False])
@pytest.mark.parametrize(("answers", "taken"), [(1, 1), (2, 0)])
def test_of_several_answers_none_is_taken_for_what_a_prompt_repeats(answers, taken, broken):
    rig = Rig()
    user, answer, more = text(700, "u"), text(300, "a"), text(100, "v")
    rig.send("pod-0", "r1", prompts=(chat(user),), n=answers, stream=True)
    rig.apply(FirstToken(RequestId("r1")))
    ended = Aborted(RequestId("r1"), 300) if broken else Finished(RequestId("r1"), Usage(700, 300))
    rig.apply(ended)
    tape = recorded(rig)
    rig.quote("r2", prompts=(chat(user, answer, more),))
    assert [type(event) for event, _, _ in tape] == [ResponseRepeated] * taken


TURNS = [text(300, "u"), text(90, "a"), text(80, "v"), text(120, "b"), text(30, "w")]
names = st.sampled_from(("pod-0", "pod-1"))
ids = st.integers(0, 4).map(lambda number: RequestId(f"r{number}"))
steps = st.lists(
    st.one_of(
        st.tuples(names, ids, st.integers(1, 5), st.booleans()),
        st.builds(FirstToken, ids),
        st.builds(Generated, ids, st.integers(0, 300)),
        st.builds(Finished, ids, st.none() | st.builds(Usage, st.just(300), st.just(90))),
        st.builds(Aborted, ids, st.integers(0, 99), st.booleans()),
        st.builds(Unobserved, ids),
        st.floats(0, 5),
        st.builds(
            LoadReported,
            names.map(lambda name: EndpointId(f"default/{name}")),
            st.builds(Load, running=st.integers(0, 4).map(float), at=st.floats(1000, 1020)),
        ),
    ),
    max_size=30,
)


def take(rig, step):
    if isinstance(step, tuple):
        name, identity, turns, stream = step
        rig.send(name, identity, prompts=(chat(*TURNS[:turns]),), stream=stream)
    elif isinstance(step, float):
        rig.now += step
    else:
        rig.apply(step)


def replayed(tape):
    """Make a fleet of what another one heard; it guesses the rest for itself."""
    fleet = Fleet(BlockHasher(SECRET))
    for event, at, guessed in tape:
        if isinstance(event, Admitted):
            fleet.apply(Admitted(event.quote, event.endpoint_id), at)
        elif not guessed:
            fleet.apply(event, at)
    return fleet


@given(steps)
def test_replayed_events_make_another_fleet_predict_the_same(steps):
    rig = Rig(0)
    tape = recorded(rig)
    for name, address in (("pod-0", "10.0.0.1"), ("pod-1", "10.0.0.2")):
        rig.add(name, address)
    for step in steps:
        take(rig, step)
    other = replayed(tape)
    check_invariants(other)
    for turns in range(1, 6):
        wanted = request("last", prompts=(chat(*TURNS[:turns]),))
        found = [
            [
                (each.cached_tokens, each.prompt_tokens, each.requests, each.queued_prefill_seconds)
                for each in fleet.candidates(fleet.quote(wanted, rig.now), rig.now)
            ]
            for fleet in (rig.fleet, other)
        ]
        assert found[0] == found[1]
