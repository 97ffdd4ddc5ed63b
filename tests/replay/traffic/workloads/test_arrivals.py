"""When conversations begin: drawn, as in a file, by users one after another."""

import json
from itertools import pairwise
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.replay.traffic.calls import Call, Run, Trace
from epp.replay.traffic.workloads.arrivals import Arrivals, arriving


def conversations(turns):
    calls: list[Call] = []
    for session, count in enumerate(turns):
        for turn in range(count):
            calls.append(
                Call(
                    at=2.0 * turn,
                    prompt=(Run(session, 10 * turn + 1),),
                    response=(Run(session, 5),),
                    session=session,
                    after=len(calls) - 1 if turn else None,
                    think=2.0 if turn else 0.0,
                )
            )
    return Trace(name="some", calls=calls)


def starts(trace):
    return [call.at for call in trace.calls if call.after is None]


def gaps(times):
    return [later - before for before, later in pairwise(times)]


def test_calls_come_at_the_rate_asked_for():
    made = arriving(conversations([2] * 4000), Arrivals(rate=10.0), 1)
    begun = starts(made)
    assert len(made.calls) / begun[-1] == pytest.approx(10, rel=0.05)
    between = gaps(begun)
    assert stdev(between) / mean(between) == pytest.approx(1, rel=0.05)
    for call in made.calls:
        if call.after is not None:
            assert call.at - made.calls[call.after].at == pytest.approx(2)


def test_bursts_have_the_coefficient_of_variation_asked_for():
    between = gaps(starts(arriving(conversations([1] * 20_000), Arrivals(rate=3.0, cv=2.5), 2)))
    assert mean(between) == pytest.approx(1 / 3, rel=0.05)
    assert stdev(between) / mean(between) == pytest.approx(2.5, rel=0.1)


@pytest.mark.parametrize(("first", "last"), [(3.0, 60.0), (20.0, 2.0)])
def test_a_ramp_goes_evenly_from_one_rate_to_the_other(first, last):
    begun = starts(arriving(conversations([1] * 20_000), Arrivals(rate=first, to_rate=last), 3))
    whole = 2 * 20_000 / (first + last)
    assert begun[-1] == pytest.approx(whole, rel=0.05)
    tenth = whole / 10
    for part in (0, 5, 9):
        count = sum(part * tenth <= at < (part + 1) * tenth for at in begun)
        expected = first + (last - first) * (part + 0.5) / 10
        assert count / tenth == pytest.approx(expected, rel=0.15)


def written(folder, times):
    rows = [
        {"timestamp": 1000 * at, "input_length": 1, "output_length": 1, "hash_ids": [0]}
        for at in times
    ]
    path = folder / "times.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_times_are_those_of_a_file_which_begins_again(tmp_path):
    like = written(tmp_path, [5, 6, 8, 11])
    # Four calls in six seconds, and the pause after the last one is a mean one.
    begun = starts(arriving(conversations([1] * 6), Arrivals(like=like), 1))
    assert begun == [0, 1, 3, 6, 8, 9]
    paced = starts(arriving(conversations([2] * 6), Arrivals(like=like, rate=2.0), 1))
    assert paced == [at / 2 for at in begun]  # one conversation a second in place of a half
    with pytest.raises(ConfigError, match="has no times"):
        arriving(conversations([1]), Arrivals(like=written(tmp_path, [3])), 1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(1, 15))
def test_users_have_one_conversation_after_the_other(turns, users):
    made = arriving(conversations(turns), Arrivals(users=users), 1)
    assert made.closed
    assert len(made.calls) == sum(turns)
    assert len(starts(made)) == min(users, len(turns))
    times = [call.at for call in made.calls]
    assert times == sorted(times)
    assert all(0 <= at < 10 for at in times)
    followers = [call.after for call in made.calls if call.after is not None]
    assert len(followers) == len(set(followers))  # one at a time
    for number, call in enumerate(made.calls):
        if call.after is None:
            continue
        before = made.calls[call.after]
        assert call.after < number
        if before.session == call.session:
            assert call.prompt[0].length == before.prompt[0].length + 10
        else:
            assert call.session == before.session + users
            assert (call.prompt[0].length, call.think) == (1, 0.0)


def test_other_arrivals_take_conversations_from_their_users():
    plain = conversations([2, 1, 3, 1, 2])
    shared = arriving(plain, Arrivals(users=2), 1)
    drawn = arriving(shared, Arrivals(rate=0.5), 1)
    assert not drawn.closed
    assert len(starts(drawn)) == 5
    for call in drawn.calls:
        assert call.after is None or drawn.calls[call.after].session == call.session
    again = arriving(shared, Arrivals(users=3), 1)
    assert (len(again.calls), len(starts(again))) == (len(plain.calls), 3)
    assert len({call.after for call in again.calls if call.after is not None}) == 9 - 3


def test_nothing_asked_for_changes_nothing():
    trace = conversations([2, 3])
    assert arriving(trace, Arrivals(), 1) is trace
