"""SMG's policies: the rules of smg 1.13, worked out by hand."""

import pytest

from epp.config.file import load
from epp.errors import ConfigError
from epp.model.endpoint import Load
from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import BlockHash
from epp.policy.peers.hash_ring import prefix_key
from epp.policy.peers.smg import SmgLeastLoadScorer, SmgPowerOfTwoPicker
from epp.policy.plugins import PickContext
from epp.values import replaced
from tests.policy.peers.desk import Desk, tokens
from tests.strategies import SteadyLoad, candidate, request

CACHE_AWARE, PREFIX_HASH = "smg-cache-aware-scorer", "smg-prefix-hash-scorer"


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        # mean 4: two deviations are 4, so more than 8 spills, 1.5 times the mean being 6
        ((8, 2, 2), [0]),
        ((9, 1, 2), [1]),
        ((6, 0, 0), [0]),  # mean 2: 4 more, not more than that; two deviations are 3
        ((7, 0, 0), [1, 2]),  # mean 2.33: 4.67 more
        # mean 5: two deviations are 4.47, which are 5
        ((10, 2, 3), [0]),
        # mean 100: two deviations are 20, but 1.5 times the mean is 150
        ((150, 75, 75), [0]),
        ((151, 75, 74), [2]),
        # mean 1600: two deviations are 80, 64 is less, 1.5 times the mean more
        ((2400, 1200, 1200), [0]),
    ],
)
def test_a_loaded_endpoint_spills_to_the_least_loaded(loads, chosen):
    at = Desk(CACHE_AWARE)
    assert at.routed(tokens(4)) == 0
    at.load(*loads)
    assert at.best(tokens(4)) == chosen


def test_the_margin_is_at_most_what_is_written():
    at = Desk(CACHE_AWARE, spillAbsThreshold=2)
    at.routed(tokens(4))
    at.load(6, 1, 2)  # 3 above the mean and twice it
    assert at.best(tokens(4)) == [1]


def test_of_those_that_have_the_longest_prefix_the_least_loaded_is_chosen():
    at = Desk(CACHE_AWARE)
    at.routed(tokens(4))
    at.load(9, 1, 2)
    assert at.routed(tokens(6)) == 1  # spilled: both have 4 blocks of it, pod-1 all 6
    at.end()
    assert at.best(tokens(6)) == [1]
    assert at.best(tokens(4)) == [0, 1]
    at.load(1, 2, 0)
    assert at.best(tokens(4)) == [0]
    at.load(2, 0, 0)
    assert at.best(tokens(4)) == [1]


def test_without_a_match_that_counts_the_least_loaded_is_chosen():
    at = Desk(CACHE_AWARE)
    at.load(2, 1, 1)
    assert at.best(tokens(4)) == [1, 2]
    at.rig.send("pod-0", "known", tokens(4))
    assert at.best(tokens(4)) == [0]
    assert at.best([*tokens(4)[:64], *tokens(10, 1000)]) == [1, 2]  # 64 of 225
    assert at.best(tokens(4), subset=("10.0.0.2:8000",)) == [1]


def test_the_tree_is_for_all_endpoints_together():
    """Of 400 tokens each of two endpoints has 200, which are three prompts of 64."""
    at = Desk(CACHE_AWARE, 2, maxTreeSize=400)
    tree = at.scorer._tree
    assert [at.route(tokens(4, start)) for start in range(0, 8000, 1000)] == [0, 1] * 4
    at.rig.now += 60
    at.routed(tokens(0))
    assert [tree.length(f"default/pod-{pod}") for pod in (0, 1)] == [192, 192]


def test_a_prompt_that_begins_the_same_has_the_same_key():
    """256 tokens are 16 blocks of token ids."""
    at = Desk(PREFIX_HASH, 8)
    starts = range(1000, 40_000, 1000)
    assert len({at.routed([*tokens(16)[:256], *tokens(2, start)]) for start in starts}) == 1
    assert len({at.routed([*tokens(15)[:240], *tokens(3, start)]) for start in starts}) > 3


@pytest.mark.parametrize(
    ("ends", "size", "exact", "key"),
    [
        (range(16, 161, 16), 165, True, 10 ^ 99),  # shorter: whole, with its rest
        (range(16, 321, 16), 330, True, 16),
        ([100, 1000, 1024, 1100], 1150, False, 3),  # 1024 bytes
        ([100, 1000, 1030], 1150, False, 2),
        ([2000], 2100, False, 1),  # no block ends within
        ((), 5, True, 99),  # less than a block
        ((), 127, False, 99),
    ],
)
def test_the_key_is_the_last_block_within_the_first_tokens(ends, size, exact, key):
    hashes = [BlockHash(number) for number in range(1, len(ends) + 1)]
    chain = Chain(hashes, ends, size, len(hashes), exact=exact, rest_digest=99)
    assert prefix_key([chain], 256) == key


@pytest.mark.parametrize(
    ("others", "own", "stays"),
    [
        # of three, the third having one less than the second; the mean is with this request
        ((5, 5), 20, True),  # mean 10: 10 more, not more than that
        ((5, 5), 21, False),  # mean 10.33
        ((80, 80), 114, True),  # mean 91.33, 1.25 times it 114.2
        ((80, 80), 115, False),  # mean 91.67, 1.25 times it 114.6
    ],
)
def test_a_loaded_endpoint_is_relieved_by_the_least_loaded(others, own, stays):
    at = Desk(PREFIX_HASH)
    home = at.routed(tokens(16))
    first, second = [pod for pod in range(3) if pod != home]
    loads = {home: own, first: others[0], second: others[1] - 1}
    at.load(*(loads[pod] for pod in range(3)))
    expected = home if stays else second
    assert at.decide(tokens(16)).endpoint.name == f"pod-{expected}"


def test_a_key_moves_only_where_its_endpoint_goes():
    at = Desk(PREFIX_HASH, 4)
    prompts = [tokens(16, start) for start in range(0, 60_000, 1000)]
    before = [at.routed(each) for each in prompts]
    at.remove(before[0])
    after = [at.routed(each) for each in prompts]
    moved = {was for was, now in zip(before, after, strict=True) if was != now}
    assert moved == {before[0]}
    assert len([*at.scorer._ring.walk(0)]) == 3


def loaded(tokens=0, usage=0.0, requests=0, waiting=0.0, *, reported=True):
    return candidate(
        load=Load(at=1.0) if reported else Load(),
        current=SteadyLoad(waiting, 0.0, usage),
        in_flight_tokens=tokens,
        requests=requests,
    )


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (loaded(tokens=4000), 2.0),
        (loaded(usage=0.5), 0.15),
        (loaded(tokens=1000, usage=0.8), 0.5 + 0.15 * 4),
        (loaded(usage=1.0), 0.15 * 999),
        (loaded(tokens=9999, requests=3, reported=False), 3 * 1024 / 2000),
    ],
)
def test_the_wait(asked, seconds):
    scorer = SmgLeastLoadScorer()
    assert scorer.seconds(asked) == pytest.approx(seconds)
    idle = loaded()
    assert scorer.score(request(), [asked, idle]) == pytest.approx([1 / (1 + seconds), 1])


def test_without_any_report_requests_count():
    asked = [loaded(requests=count, reported=False) for count in (3, 1, 2)]
    assert SmgLeastLoadScorer().score(request(), asked) == [1 / 3, 1, 1 / 2]


def test_full_queues_are_left_out_while_there_are_others():
    scorer = SmgLeastLoadScorer(max_waiting_requests=2)
    asked = [loaded(waiting=2), loaded(tokens=2000, waiting=1), loaded(tokens=4000)]
    assert scorer.score(request(), asked) == [0, 1, 0.5]
    asked = [loaded(waiting=2), loaded(tokens=2000, waiting=3)]
    assert scorer.score(request(), asked) == [1, 0.5]


def picked(picker, asked, *drawn):
    draws = iter(drawn)
    context = PickContext(lambda most: next(draws) % most, 0)
    (position,) = picker.pick(asked, [0.0] * len(asked), context)
    return position


@pytest.mark.parametrize(
    ("metric", "expected"), [("expected_wait", 1), ("token_usage", 2), ("requests", 0)]
)
def test_the_less_loaded_of_two_is_picked(metric, expected):
    """Each is the best by one measure; of two different ones the first draw names one."""
    picker = SmgPowerOfTwoPicker(load_metric=metric)
    asked = [
        loaded(tokens=8000, usage=0.4, requests=1),
        loaded(tokens=100, usage=0.6, requests=8),
        loaded(tokens=4000, usage=0.1, requests=9),
    ]
    for other in {0, 1, 2} - {expected}:
        assert picked(picker, asked, expected, (other - expected - 1) % 3) == expected
        assert picked(picker, asked, other, (expected - other - 1) % 3) == expected


def test_the_first_of_equals_is_picked_and_one_alone_needs_no_chance():
    picker = SmgPowerOfTwoPicker()
    assert picked(picker, [loaded()] * 3, 2, 0) == 2
    assert picked(picker, [loaded()]) == 0


def test_what_one_has_not_reported_is_not_compared():
    asked = [loaded(tokens=9000, requests=1), loaded(requests=2, reported=False)]
    assert picked(SmgPowerOfTwoPicker(), asked, 1, 0) == 0
    asked[0] = replaced(asked[0], requests=3)
    assert picked(SmgPowerOfTwoPicker(), asked, 1, 0) == 1


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        (CACHE_AWARE, "cacheThreshold", 2, "0 to 1"),
        (CACHE_AWARE, "spillAbsThreshold", -1, "a number of requests"),
        (CACHE_AWARE, "spillRelThreshold", 0.9, "such as 1.5"),
        (PREFIX_HASH, "prefixTokenCount", 0, "such as 256"),
        (PREFIX_HASH, "loadFactor", 0.9, "such as 1.25"),
        (PREFIX_HASH, "balanceAbsThreshold", -1, "a number of requests"),
        ("smg-least-load-scorer", "kvPressureWeight", -1, "such as 0.15"),
        ("smg-least-load-scorer", "defaultThroughput", 0, "as 2000"),
        ("smg-least-load-scorer", "meanPrefillTokens", 0, "such as 1024"),
        ("smg-least-load-scorer", "maxWaitingRequests", -1, "0 for no limit"),
        ("smg-power-of-two-picker", "defaultThroughput", 0, "as 2000"),
        ("smg-power-of-two-picker", "loadMetric", "load", "not one of expected_wait"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(kind, name, value, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load(f"plugins: [{{type: {kind}, parameters: {{{name}: {value}}}}}]")
    assert name in str(caught.value)
