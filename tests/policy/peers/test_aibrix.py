"""aibrix-prefix-cache: the rules of AIBrix's prefix_cache.go, worked out by hand."""

from functools import partial

import pytest

from tests.policy.peers.desk import Desk, holding, tokens

KIND = "aibrix-prefix-cache-scorer"
PROMPT = tokens(8)


desk = partial(holding, KIND, PROMPT)


@pytest.mark.parametrize(
    ("holding", "loads", "chosen"),
    [
        ((0, 0, 0), (1, 0, 0), [1, 2]),  # nothing is known: the least loaded are equal
        ((2, 0, 0), (5, 5, 0), [0]),  # any known prefix counts
        ((2, 6, 0), (0, 5, 5), [1]),  # the longest does
        ((8, 8, 8), (3, 2, 8), [1]),  # of equals the least loaded
        ((8, 8, 8), (2, 2, 8), [0, 1]),
        # The mean is 2.5 and the deviation 5: 12.5 are allowed, 16 more than the least too.
        ((0, 0, 0, 8), (0, 0, 0, 10), [3]),
        # The mean is 1 and the deviation 3.16 of ten pods: 7.3 are allowed.
        ((8, *[0] * 9), (10, *[0] * 9), [*range(1, 10)]),
        ((8, 2, *[0] * 8), (10, *[0] * 9), [1]),  # the next longest
        # 17 more than the least: only these are asked, and pod-1 knows more than pod-2.
        ((8, 4, 2), (17, 0, 0), [1]),
        ((8, 0, 0), (17, 0, 0), [1, 2]),
        ((8, 4, 2), (16, 0, 0), [0]),  # the mean is 5.3 and the deviation 9.2: 23.8 are allowed
    ],
)
def test_the_longest_prefix_wins_among_those_that_are_not_too_busy(holding, loads, chosen):
    at = desk(*holding)
    at.load(*loads)
    assert at.best(PROMPT) == chosen


def test_the_bounds_can_be_narrower():
    """Loads 0, 0, 0, 10 have the mean 2.5 and the deviation 5: 7.5 are within one of them."""
    for parameters, chosen in (
        ({"standardDeviationFactor": 1}, [0, 1, 2]),
        ({"standardDeviationFactor": 1.5}, [3]),
        ({"imbalanceAbsCount": 9}, [0, 1, 2]),
        ({"imbalanceAbsCount": 10}, [3]),
    ):
        at = desk(0, 0, 0, 8, **parameters)
        at.load(0, 0, 0, 10)
        assert at.best(PROMPT) == chosen


def test_shares_are_compared_in_whole_percent():
    """102 and 103 of 200 blocks are both 51 percent, 104 are 52."""
    long = tokens(200)
    for longer, chosen in ((103, [0]), (104, [1])):
        at = Desk(KIND, 2)
        at.hold(long, 102, longer)
        at.load(0, 1)
        assert at.best(long) == chosen


def test_the_index_forgets():
    at = desk(8, 0, 0, blockNumber=4, evictionDurationMins=1)
    at.load(1, 0, 0)
    assert at.best(PROMPT) == [1, 2]  # the prompt's first 4 blocks were evicted by its last 4
    at.hold(tokens(4, 5000), 4)
    at.load(1, 0, 0)
    assert at.best(tokens(4, 5000)) == [0]
    at.rig.now += 61
    assert at.best(tokens(4, 5000)) == [1, 2]


def test_one_pod_and_prompts_without_a_block():
    at = desk(8)
    assert at.best(PROMPT) == at.best("short") == at.best() == [0]
