"""Runs of tokens beside the tokens that they are."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from epp.replay.traffic.calls import (
    Call,
    InfiniteCache,
    Run,
    block_keys,
    cut,
    joined,
    ordered,
    packed,
    tokens_in,
)

RUNS = st.lists(st.builds(Run, st.integers(0, 3), st.integers(1, 9)), max_size=8).map(joined)
WIDTH = 4


@given(st.lists(RUNS, max_size=4))
def test_runs_are_joined_as_their_tokens_are(parts):
    whole = joined(*parts)
    assert packed(whole) == b"".join(map(packed, parts))
    assert all(one.token != other.token for one, other in pairwise(whole))


@given(RUNS, st.integers(0, 80), st.integers(0, 80))
def test_runs_are_cut_as_their_tokens_are(runs, start, end):
    part = cut(runs, start, end)
    assert packed(part) == packed(runs)[start * WIDTH : end * WIDTH]
    assert tokens_in(part) == len(packed(part)) // WIDTH
    assert all(run.length > 0 for run in part)


@given(RUNS, RUNS, st.integers(1, 7))
def test_keys_of_blocks_are_equal_where_all_tokens_up_to_them_are(one, other, size):
    left, right = block_keys(one, size), block_keys(other, size)
    assert len(left) == tokens_in(one) // size
    for place, (mine, yours) in enumerate(zip(left, right, strict=False), 1):
        upto = place * size * WIDTH
        assert (mine == yours) == (packed(one)[:upto] == packed(other)[:upto])


SOME = RUNS.filter(len)


@given(st.lists(st.tuples(SOME, SOME, st.sampled_from(["", "sql"])), max_size=6), st.integers(1, 7))
def test_an_infinite_cache_has_what_earlier_calls_of_an_adapter_begin_with(listed, size):
    cache = InfiniteCache(size)
    before: dict[str, list[bytes]] = {"": [], "sql": []}
    for prompt, response, adapter in listed:
        call = Call(at=0.0, prompt=prompt, response=response, session=0, adapter=adapter)
        whole = packed(joined(prompt, response))
        blocks = [whole[:end] for end in range(size * WIDTH, len(whole) + 1, size * WIDTH)]
        known = [one for one in blocks if any(each.startswith(one) for each in before[adapter])]
        assert cache.admit(call) == min(len(known) * size, tokens_in(prompt) - 1)
        before[adapter].append(whole)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12))
def test_calls_are_ordered_and_none_comes_before_what_it_goes_on_with(listed):
    calls = [
        Call(
            at=float(at),
            prompt=(Run(number, 1),),
            response=(Run(number, 1),),
            session=0,
            after=number - 1 if number and goes_on else None,
        )
        for number, (at, goes_on) in enumerate(listed)
    ]
    made = ordered(calls)
    names = [call.prompt[0].token for call in made]
    assert sorted(names) == list(range(len(calls)))
    assert [call.at for call in made] == sorted(call.at for call in made)
    for call in made:
        name = call.prompt[0].token
        before = calls[name].after
        assert (call.after is None) == (before is None)
        if call.after is not None:
            assert names[call.after] == before
            assert call.at >= max(made[call.after].at, calls[name].at)
