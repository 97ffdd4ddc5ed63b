"""Holding plug-ins against routers: the sequence, chance, and what counts as alike."""

from collections import Counter

import pytest

from bench.peers.__main__ import after_each_alone
from bench.peers.cases import CASES
from bench.peers.follow import Turn, as_chat, as_tokens, follow, in_characters, in_chunks
from bench.peers.hashes import ring_in
from bench.peers.traffic import Step, sequence
from epp.policy.peers import vllm_router
from epp.replay.policies import NAMED

REQUESTS = 30
BLOCKS = "plugins: [{type: vllm-cache-aware-scorer}]"
LEAST = "plugins: [{type: least-request-picker}]"
"""Chance decides among equals."""


@pytest.fixture(scope="module")
def steps():
    return sequence(REQUESTS)


def test_the_sequence_is_the_same_each_time_and_ends_what_has_come(steps):
    assert sequence(REQUESTS) == steps
    for kind in ("begun", "ended"):
        told = Counter(number for step in steps for number in getattr(step, kind))
        assert not told or max(told.values()) == 1
    ended = set()
    for number, step in enumerate(steps):
        assert all(each < number for each in (*step.begun, *step.ended))
        ended |= set(step.ended)
    assert 0 < len(ended) < len(steps)


def test_roles_alternate_up_to_the_user():
    assert [each["role"] for each in Step(("s", "u", "a", "u"), "x").chat] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert [each["role"] for each in Step(("u", "a", "u"), "x").chat] == [
        "user",
        "assistant",
        "user",
    ]


def turns(picked, steps=None):
    steps = steps or [Step((f"hello {number} " * 40,), "s") for number in range(len(picked))]
    return [Turn(step, worker) for step, worker in zip(steps, picked, strict=True)]


def test_any_of_equally_loaded_endpoints_is_alike_and_another_is_not():
    """Nothing ends: the second request has three equals, the fourth one, the last any again."""
    found = follow(LEAST, turns([2, 0, 1, 3, 3]), 4, as_chat)
    assert (found.requests, found.alike, found.by_chance) == (5, 5, 4)
    found = follow(LEAST, turns([2, 2, 1, 0]), 4, as_chat)
    (difference,) = found.differences
    assert (difference.step, difference.router) == (1, 2)
    assert difference.plugin == {0, 1, 3}
    assert difference.loads == {0: 0, 1: 0, 2: 1, 3: 0}


def test_the_order_of_the_workers_is_found():
    """The first of equals is chosen: the router has its workers in the order 2, 0, 3, 1."""
    assert not follow(BLOCKS, turns([2, 0, 3, 1, 2]), 4, as_tokens).differences


@pytest.mark.parametrize(("prompts", "alike"), [(in_chunks, 2), (in_characters(" "), 1)])
def test_units_are_blocks(prompts, alike):
    """Of 100 characters 99 are shared: a match in characters, none in chunks of 128."""
    steps = [Step(("a" * 99 + end,), "s") for end in "bc"]
    assert follow(BLOCKS, turns([0, 1], steps), 2, prompts).alike == alike


def test_a_ring_is_the_router_s():
    steps = [Step(("x" * 300,), session) for session in "aabba"]
    where = [1, 1, 0, 0, 1]
    asked = [Turn(step, worker, worker) for step, worker in zip(steps, where, strict=True)]
    moved = [*asked[:-1], Turn(steps[-1], 0, 1)]
    with ring_in(vllm_router) as hint:
        config = NAMED["vllm-consistent-hash"].text
        assert not follow(config, asked, 2, as_chat, hint).differences
        assert follow(config, moved, 2, as_chat, hint).alike == 4


def test_requests_are_asked_alone_before(steps):
    twice = after_each_alone(steps)
    assert [each.messages for each in twice] == 2 * [each.messages for each in steps]
    under: set[int] = set()
    for number, step in enumerate(twice):
        under -= set(step.ended)
        assert not under or number > len(steps)
        under.add(number)


def test_policies_are_those_of_replay_where_it_has_them():
    """Without SMG's filter of loads that its workers do not report."""
    for case in CASES:
        if case.name in NAMED and not case.name.startswith("smg"):
            assert case.config == NAMED[case.name].text
