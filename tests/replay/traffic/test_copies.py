"""Copies of a trace, and minutes of it."""

import math
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.replay.traffic.calls import TOKEN_IDS, Call, Run, Trace, tokens_in
from epp.replay.traffic.copies import minutes, superposed
from epp.replay.traffic.workloads.arrivals import Arrivals, arriving

SYSTEM = Run(0, 100)
COPIES = st.floats(1, 4)


def conversations(turns, closed=False):
    """One conversation for each number of turns; all begin with the system prompt."""
    calls: list[Call] = []
    for session, count in enumerate(turns):
        prompt: tuple[Run, ...] = (SYSTEM,)
        for turn in range(count):
            own = 1 + 100 * session + 2 * turn
            prompt = (*prompt, Run(own, 50))
            calls.append(
                Call(
                    at=float(10 * session + (0 if closed else turn)),
                    prompt=prompt,
                    response=(Run(own + 1, 5),),
                    session=session,
                    after=len(calls) - 1 if turn else None,
                    think=2.0 if turn else 0.0,
                )
            )
    order = sorted(range(len(calls)), key=lambda number: calls[number].at)
    assert order == list(range(len(calls)))
    return Trace(name="some", calls=calls, closed=closed)


TRACES = st.builds(
    conversations, st.lists(st.integers(1, 5), min_size=12, max_size=20), st.booleans()
)


def consistent(trace):
    times = [call.at for call in trace.calls]
    assert times == sorted(times)
    assert all(at >= 0 for at in times)
    for number, call in enumerate(trace.calls):
        if call.after is not None:
            before = trace.calls[call.after]
            assert call.after < number
            assert before.session == call.session
            assert [*before.prompt] == [*call.prompt][: len(before.prompt)]


@given(TRACES, COPIES, st.integers(0, 9))
def test_copies_are_whole_conversations_of_private_tokens(trace, copies, seed):
    made = superposed(trace, copies, seed)
    consistent(made)
    held = Counter(call.session for call in made.calls)
    turns = Counter(call.session for call in trace.calls)
    of_session = Counter(session % len(turns) for session in held)
    assert {math.floor(copies), math.ceil(copies)} >= {of_session[each] for each in turns}
    assert all(count == turns[session % len(turns)] for session, count in held.items())
    assert all(call.prompt[0] == SYSTEM for call in made.calls)
    private: dict[int, int] = {}
    for call in made.calls:
        for run in (*call.prompt[1:], *call.response):
            assert private.setdefault(run.token, call.session) == call.session
    assert made == superposed(trace, copies, seed)


def test_the_number_of_copies_may_be_a_fraction():
    trace = conversations([1] * 2000)
    assert len(superposed(trace, 2.4, 1).calls) == pytest.approx(2.4 * 2000, rel=0.05)
    assert len(superposed(trace, 0.3, 1).calls) == pytest.approx(0.3 * 2000, rel=0.1)
    assert superposed(trace, 1, 5) == trace


def test_a_copy_comes_at_about_the_same_time_and_keeps_its_pauses():
    trace = conversations([3] * 20)
    times = defaultdict[int, list[float]](list)
    for call in superposed(trace, 2, 3).calls:
        times[call.session].append(call.at)
    for session in range(20):
        start = 10.0 * session
        assert times[session] == [start, start + 1, start + 2]
        moved = times[20 + session]
        assert abs(moved[0] - start) <= 1.5
        assert moved[2] - moved[1] == pytest.approx(1)
    assert any(times[20 + session][0] != 10.0 * session for session in range(20))


def test_conversations_of_a_closed_loop_begin_anywhere_in_the_time_of_all():
    trace = conversations([2] * 50, closed=True)
    made = superposed(trace, 2, 3)
    starts = {call.session: call.at for call in made.calls}
    assert all(0 <= at <= 490 for at in starts.values())
    assert sum(abs(starts[50 + each] - starts[each]) > 60 for each in range(50)) > 25


def test_a_token_of_a_tenth_of_the_conversations_stays_shared_and_one_of_two_does_not():
    calls = [
        Call(
            at=0.0,
            prompt=(Run(token, 1), Run(10 + session, 1)),
            response=(Run(90, 1),),
            session=session,
        )
        for session, token in enumerate([1, 1, *[2] * 3, *range(200, 225)])
    ]
    made = superposed(Trace(name="some", calls=calls), 2, 1).calls
    first = {call.prompt[0].token for call in made if call.session in (30, 32)}
    assert 2 in first
    assert 1 not in first
    assert len(first) == 2


def test_copies_of_users_are_users_with_all_of_their_conversations():
    users = arriving(conversations([2] * 30), Arrivals(users=6), 1)
    made = superposed(users, 1.5, 4)
    begun = [call for call in made.calls if call.after is None]
    assert len(begun) * 10 == len(made.calls)  # five conversations of two turns each
    assert 6 < len(begun) < 12


@pytest.mark.parametrize("copies", [0, -1, math.inf, math.nan])
def test_a_number_of_copies_that_cannot_be(copies):
    with pytest.raises(ConfigError, match="cannot be replayed"):
        superposed(conversations([1]), copies, 1)


def test_nothing_is_left():
    with pytest.raises(ConfigError, match="hold no conversation"):
        superposed(conversations([1, 1]), 1e-9, 1)


def test_more_copies_than_there_are_token_ids():
    call = Call(at=0.0, prompt=(Run(TOKEN_IDS - 1, 1),), response=(Run(0, 1),), session=0)
    with pytest.raises(ConfigError, match="token ids"):
        superposed(Trace(name="some", calls=[call]), 2, 1)


def test_minutes_of_a_trace_count_from_their_beginning():
    trace = conversations([3] * 20)  # three turns each, a second apart, every ten seconds
    part = minutes(trace, 1, 2)
    consistent(part)
    assert [call.at for call in part.calls[:4]] == [0, 1, 2, 10]
    assert {call.session for call in part.calls} == set(range(6, 12))
    cut = minutes(trace, 61 / 60, 2)  # the first turn of a conversation is left out
    assert (cut.calls[0].after, cut.calls[1].after) == (None, 0)
    assert tokens_in(cut.calls[0].prompt) == 200


def test_minutes_in_which_nothing_comes():
    with pytest.raises(ConfigError, match=r"minutes 20-31: the last one comes in minute 3\.2"):
        minutes(conversations([3] * 20), 20, 31)
