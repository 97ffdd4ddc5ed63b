"""sglang-cache-aware: the rules of sglang-router 0.3.2, worked out by hand."""

import pytest

from epp.config.file import load
from epp.errors import ConfigError
from tests.policy.peers.desk import Desk, known_nodes, tokens

KIND = "sglang-cache-aware-scorer"


def desk(pods=3, **parameters):
    return Desk(KIND, pods, **parameters)


def test_a_match_above_the_threshold_goes_where_the_prefix_went():
    """Of 11 blocks and a token 4 match: 64 of 177 tokens, 0.36; of 14: 64 of 225, 0.28."""
    at = desk()
    at.load(0, 1, 1)
    first = tokens(4)
    assert at.route(first) == 0  # nothing is known: the least loaded one
    at.load(3, 0, 0)  # loads are 4, 1, 1
    long_enough = first[:-1] + tokens(7, 10_000)
    assert len(long_enough) == 177
    assert at.decide(long_enough).endpoint.name == "pod-0"
    too_long = first[:-1] + tokens(10, 20_000)
    assert len(too_long) == 225
    assert at.decide(too_long).endpoint.name == "pod-1"


def test_the_threshold_itself_is_not_enough():
    at = desk(pods=2, cacheThreshold=0.5)
    at.route(tokens(1))
    assert at.decide(tokens(1)[:16] + [7] * 16).endpoint.name == "pod-1"  # 16 of 32
    assert at.decide(tokens(1)[:16] + [7] * 15).endpoint.name == "pod-0"  # 16 of 31


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ((69, 5, 5), 0),  # 64 more is not more than 64
        ((70, 5, 5), 1),  # 65 more, 14 times as many
        ((195, 130, 130), 0),  # 65 more, 1.5 times as many: not more than that
        ((196, 130, 130), 1),
        ((70, 4, 3), 2),
    ],
)
def test_both_gates_have_to_be_passed_for_the_least_load_to_count(loads, chosen):
    at = desk()
    assert at.routed(tokens(4)) == 0
    at.load(*loads)
    assert at.decide(tokens(4)).endpoint.name == f"pod-{chosen}"


def test_a_prompt_is_known_at_the_least_loaded_one_too_but_the_first_is_named():
    at = desk(balanceAbsThreshold=0)
    assert at.routed(tokens(4)) == 0
    at.load(1, 0, 0)
    assert at.routed(tokens(6)) == 1  # out of balance; pod-0 has 4 blocks of it, pod-1 all 6
    assert at.routed(tokens(6)) == 1
    assert at.routed(tokens(4)) == 0
    at.remove(0)
    assert at.routed(tokens(4)) == 1  # the other one that has it


def test_of_equals_the_first_is_chosen_and_others_score_nothing():
    at = desk()
    assert at.scores(tokens(4)) == {"pod-0": 1, "pod-1": 0, "pod-2": 0}
    assert [at.route() for _ in range(4)] == [0, 1, 2, 0]


def test_where_the_one_that_has_it_is_no_candidate_the_first_is_chosen():
    at = desk()
    at.load(1, 1, 0)
    assert at.route(tokens(4)) == 2
    at.load(4, 0, 0)
    among = ("10.0.0.1:8000", "10.0.0.2:8000")
    assert at.decide(tokens(4), subset=among).endpoint.name == "pod-0"


def test_an_engine_that_is_another_one_has_nothing():
    at = desk()
    at.load(1, 1, 0)
    assert at.route(tokens(4)) == 2
    at.rig.add("pod-2", "10.0.0.3", uid="restarted")
    at.load(0, 0, 2)
    assert at.route(tokens(4)) == 0


def test_what_was_sent_first_is_evicted_first_once_a_minute():
    """200 tokens hold three prompts of 4 blocks (64 tokens each), not four."""
    at = desk(pods=1, maxTreeSize=200)
    tree = at.scorer._tree
    prompts = [tokens(4, start) for start in range(0, 4000, 1000)]
    at.routed(prompts[0])
    at.rig.now += 60
    at.routed(prompts[1])  # the first sweep is 60 s after the clock's zero, long ago
    at.routed(prompts[2])
    at.routed(prompts[0])
    at.routed(prompts[3])
    assert known_nodes(tree) == 4
    at.rig.now += 60
    at.routed(tokens(0))
    assert [known_nodes(tree), tree.length("default/pod-0")] == [3, 192]
    known = [
        each for each in prompts if tree.match(at.rig.quote("x", each).chains[0].hashes).length
    ]
    assert known == [prompts[0], prompts[2], prompts[3]]


def test_at_twice_the_size_it_does_not_wait_for_the_minute():
    at = desk(pods=1, maxTreeSize=64)
    tree = at.scorer._tree
    at.routed(tokens(1))
    for start in range(1000, 9000, 1000):
        at.routed(tokens(3, start))
    assert tree.length("default/pod-0") <= 2 * 64


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("cacheThreshold", 1.5, "a share of the prompt, 0 to 1"),
        ("cacheThreshold", -0.1, "a share of the prompt, 0 to 1"),
        ("balanceAbsThreshold", -1, "a number of requests"),
        ("balanceRelThreshold", 0.5, "a multiple, such as 1.5"),
        ("evictionIntervalSecs", 0, "seconds, such as 60"),
        ("maxTreeSize", 0, "a length, such as 67108864"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(name, value, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load(f"plugins: [{{type: {KIND}, parameters: {{{name}: {value}}}}}]")
    assert name in str(caught.value)
