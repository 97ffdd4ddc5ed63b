"""The LRUs that the cache model is measured against do what their owners say of them."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.accuracy.baselines import Cache, baselines, own, retold
from bench.accuracy.lru import LLM_D_ROUTER_BLOCK, Blocks, LlmDRouter, Lru
from bench.accuracy.observation import Guess, Observation
from bench.accuracy.workload import Reply


def prompt(*ids):
    return Blocks(array("I", ids))


def run(start, count):
    return prompt(*range(start, start + count))


def test_a_block_is_named_by_all_that_stands_before_it():
    one, other = prompt(1, 2, 3, 4), prompt(9, 2, 3, 4)
    assert len(one.names(2)) == 2
    assert set(one.names(2)).isdisjoint(other.names(2))
    assert prompt(1, 2, 3, 4, 5).names(2) == one.names(2)  # the rest of a block has no name


@pytest.mark.parametrize(
    ("sent", "asked", "cached"),
    [
        (run(0, 8), run(0, 9), 8),
        (run(0, 8), run(0, 8), 4),  # the last token is always computed
        (run(0, 8), run(0, 7), 4),
        (run(0, 7), run(0, 9), 4),
        (run(0, 8), run(1, 8), 0),
    ],
)
def test_an_lru_finds_whole_blocks_from_the_start(sent, asked, cached):
    lru = Lru(entries=10, block=4)
    lru.sent(sent)
    assert lru.predict(asked) == cached


def test_an_lru_evicts_the_head_of_the_oldest_prompt_first():
    lru = Lru(entries=4, block=4)
    lru.sent(run(0, 12))
    lru.sent(run(100, 8))
    assert lru.predict(run(0, 13)) == 0  # two blocks are still there, but not the first
    assert lru.predict(run(100, 9)) == 8


ids = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


@given(st.lists(ids, max_size=20), ids, st.integers(1, 6), st.integers(1, 3))
def test_an_lru_holds_the_blocks_used_last(sent, asked, entries, block):
    """Against a list of prefixes, the last used at the end."""
    lru = Lru(entries, block)
    held: list[tuple[int, ...]] = []
    for each in sent:
        lru.sent(prompt(*each))
        for end in range(block, len(each) + 1, block):
            held = [prefix for prefix in held if prefix != each[:end]] + [each[:end]]
            held = held[-entries:]
    hits = 0
    while hits + block < len(asked) and asked[: hits + block] in held:
        hits += block
    assert lru.predict(prompt(*asked)) == hits


def test_llm_d_router_credits_a_server_with_blocks_behind_a_hole():
    block = LLM_D_ROUTER_BLOCK
    index = LlmDRouter(entries=2)
    one, other = index.of("one"), index.of("other")
    one.sent(run(0, 3 * block))  # its first block is evicted already
    assert one.predict(run(0, 3 * block)) == 0  # nobody holds the first block
    other.sent(run(0, block))
    assert one.predict(run(0, 3 * block)) == 2 * block
    assert other.predict(run(0, 3 * block)) == block


def seen(endpoint, ids, cached):
    return Observation(
        at=0,
        session=0,
        turn=0,
        endpoint=endpoint,
        reply=Reply.WHOLE,
        noise=False,
        messages=(),
        predicted=7,
        predicted_prompt=len(ids),
        prompt=len(ids),
        cached=cached,
    )


def test_each_server_has_an_index_of_its_own_and_the_unknown_counts_as_load():
    prompts = [run(0, 9), run(0, 9), run(0, 9), run(0, 9)]
    told = [
        seen("a", range(9), 0),
        seen("b", range(9), None),  # aborted: it reported nothing
        seen("b", range(9), 8),
        seen("a", range(9), 8),
    ]
    of = baselines(Cache(blocks=8, block=4))["lru_true_capacity"]
    assert retold(told, prompts, of) == [Guess(9, 0, 0), Guess(9, 8, 8), Guess(9, 8, 8)]
    assert own(told) == [Guess(9, 7, 0), Guess(9, 7, 8), Guess(9, 7, 8)]
