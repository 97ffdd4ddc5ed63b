"""ray-prefix-affinity: the rules of Ray 2.60's prefix_aware_router.py, worked out by hand."""

from functools import partial

import pytest

from tests.policy.peers.desk import BLOCK, Desk, holding, known_nodes, tokens

KIND = "ray-prefix-affinity-scorer"
PROMPT = tokens(8)


desk = partial(holding, KIND, PROMPT)


@pytest.mark.parametrize(
    ("holding", "loads", "chosen"),
    [
        ((0, 0, 0), (1, 0, 0), [1, 2]),  # all know nothing: the least loaded
        ((2, 0, 0), (9, 0, 0), [0]),  # 32 of 129 tokens, whatever the load
        ((2, 4, 4), (0, 9, 8), [2]),  # of those that know the most the least loaded
        ((2, 4, 4), (0, 9, 9), [1, 2]),
    ],
)
def test_the_least_loaded_of_those_that_know_the_longest_prefix(holding, loads, chosen):
    at = desk(*holding)
    at.load(*loads)
    assert at.best(PROMPT) == chosen


def test_a_short_match_goes_where_the_least_text_went():
    """16 of 160 tokens are a tenth, 16 of 161 are less; pod-2 was sent 32 tokens, pod-1 48."""
    at = desk(1, 0, 0)
    at.hold(tokens(9, 5000), 0, 3, 2)
    at.load(0, 0, 7)
    start = PROMPT[:BLOCK]
    assert at.best(start + tokens(9, 7000)[:144]) == [0]
    assert at.best(start + tokens(9, 7000)) == [0]  # with 16 tokens it has the least text, too
    at.hold(tokens(9, 9000), 3)  # 64 by now
    at.load(0, 0, 7)
    assert at.best(start + tokens(9, 7000)[:144]) == [0]
    assert at.best(start + tokens(9, 7000)) == [2]


def test_what_prompts_share_counts_once():
    at = desk(4, 4)
    at.hold(PROMPT, 5, 4)
    at.hold(PROMPT, 0, 4)  # 5 blocks there, 4 here
    assert at.best(tokens(8, 5000)) == [1]


@pytest.mark.parametrize(
    ("drawn", "chosen"),
    [
        # Loads are 6, 1, 2. Of three the second and then of two the second: pods 1 and 2.
        ([1, 1], [1]),
        ([0, 1], [2]),  # pods 0 and 2
        ([0, 0], [1]),  # pods 0 and 1
        ([2, 0], [2]),  # pods 2 and 0
    ],
)
def test_uneven_loads_leave_it_to_two_choices(drawn, chosen):
    below: list[int] = []
    at = Desk(KIND, 3, below=lambda _: below.pop(0) if below else 0, imbalancedThreshold=4)
    at.hold(PROMPT, 8)
    at.load(5, 1, 2)  # 4 more is not more than 4
    assert at.best(PROMPT) == [0]
    at.load(1)
    below += drawn
    assert at.best(PROMPT) == chosen


def test_so_do_requests_without_a_prompt():
    below = [2, 1]
    at = Desk(KIND, 3, below=lambda _: below.pop(0) if below else 0)
    at.load(0, 1, 1)
    assert at.best() == [1, 2]
    assert desk(0, 0).best() == [0, 1]


def test_prompts_of_less_than_a_block_do_not_all_go_where_the_least_text_went():
    """They add nothing to the text that an endpoint was sent, so it would stay the least."""
    at = desk(8, 0)
    at.load(1, 9)
    assert at.best([1, 2, 3]) == [0]


def test_eviction_cuts_back_what_is_above_the_threshold():
    """Of 6 blocks (96 tokens) above 80 it leaves 48: the three that came last."""
    at = Desk(KIND, 1, doEviction=True, evictionThresholdChars=80, evictionTargetChars=48)
    tree = at.scorer._tree
    for start in range(0, 5000, 1000):
        at.hold(tokens(1, start), 1)
    at.rig.now += 10
    at.hold(tokens(1, 5000), 1)
    assert tree.length("default/pod-0") == 48
    known = [tree.blocks(chain(at, start), "default/pod-0") for start in range(0, 6000, 1000)]
    assert known == [0, 0, 0, 1, 1, 1]


def chain(at, start):
    return at.rig.quote("asked", tokens(1, start)).chains[0].hashes


def test_without_eviction_everything_is_kept_and_what_goes_is_forgotten():
    at = desk(8, 0, 0, evictionThresholdChars=48, evictionTargetChars=32)
    at.rig.now += 100
    at.hold(tokens(8, 5000), 0, 8, 8)
    assert at.scorer._tree.length("default/pod-0") == 128
    at.remove(0)
    assert known_nodes(at.scorer._tree) == 1  # the others' prompt
    at.rig.add("pod-1", "10.0.0.7")
    at.rig.add("pod-2", "10.0.0.8")
    assert known_nodes(at.scorer._tree) == 0
