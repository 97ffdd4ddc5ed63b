"""Pickers: their criteria, ties, and the order of preference."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config.catalogue import PLUGINS
from epp.policy.choice import ttft_costs
from epp.policy.pickers import (
    LeastRequestPicker,
    LeastTtftPicker,
    MaxScorePicker,
    RandomPicker,
    RoundRobinPicker,
    WeightedRandomPicker,
)
from epp.policy.plugins import PickContext, Picker, Unseen
from tests.strategies import candidate, candidates

PICKERS = [kind for kind in PLUGINS.values() if hasattr(kind, "pick")]
WITH_COUNT = [kind for kind in PICKERS if "max_num_of_endpoints" in kind.__struct_fields__]

FIRST = PickContext(lambda _: 0, 0)
LAST = PickContext(lambda count: count - 1, 0)


def some(count, **more):
    return [candidate(f"pod-{number}", **more) for number in range(count)]


def drawn(data):
    return PickContext(
        lambda count: data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 99))
    )


@pytest.mark.parametrize(
    ("totals", "first", "last"),
    [([1.0], 0, 0), ([0.1, 0.5, 0.2], 1, 1), ([0.5, 0.1, 0.5], 0, 2), ([0.0, 0.0, 0.0], 0, 2)],
)
def test_max_score_draws_among_the_best_only(totals, first, last):
    asked = some(len(totals))
    assert MaxScorePicker().pick(asked, totals, FIRST) == (first,)
    assert MaxScorePicker().pick(asked, totals, LAST) == (last,)


def chances(*shares):
    """Draw these shares of what is drawn among, one after the other; then the first."""
    left = iter(shares)
    return PickContext(lambda count: int(next(left, 0) * count), 0)


@pytest.mark.parametrize(
    ("totals", "drawn", "expected"),
    [
        # keys U^(1 / total), U = 1 - what is drawn: 0.5 and 0.5^(1/3) = 0.79
        ([1.0, 3.0], (0.5, 0.5), [1, 0]),
        # 0.9 and 0.5^(1/3) = 0.79
        ([1.0, 3.0], (0.1, 0.5), [0, 1]),
        # 0 and less have the key 0, and are drawn among: the shares after the first are the ties'
        ([0.0, 1.0, -1.0], (0.99, 0.0, 0.0, 0.0), [1, 0, 2]),
        ([0.0, 1.0, -1.0], (0.99, 0.9, 0.0, 0.0), [1, 2, 0]),
        ([0.0, 0.0], (0.6, 0.0), [1, 0]),
    ],
)
def test_weighted_random(totals, drawn, expected):
    found = WeightedRandomPicker(len(totals)).pick(some(len(totals)), totals, chances(*drawn))
    assert list(found) == expected


def test_weighted_random_picks_in_proportion():
    context, asked = PickContext(Random(14).randrange, 0), some(3)  # noqa: S311
    picked = Counter(
        WeightedRandomPicker().pick(asked, [1.0, 3.0, 0.0], context)[0] for _ in range(4000)
    )
    assert picked[0] / 4000 == pytest.approx(0.25, abs=0.03)
    assert picked[2] == 0


def test_several_are_in_the_order_of_preference():
    totals = [0.1, 0.9, 0.5, 0.7]
    for count, expected in ((2, [1, 3]), (3, [1, 3, 2]), (9, [1, 3, 2, 0])):
        assert list(MaxScorePicker(count).pick(some(4), totals, LAST)) == expected


@pytest.mark.parametrize("count", [0, -3])
def test_max_endpoints_below_one_counts_as_one(count):
    assert len(MaxScorePicker(count).pick(some(3), [0.1, 0.2, 0.3], FIRST)) == 1


def test_least_request_counts_requests():
    asked = [candidate(requests=each) for each in (3, 1, 2, 1)]
    assert LeastRequestPicker().pick(asked, [], FIRST) == (1,)
    assert LeastRequestPicker().pick(asked, [], LAST) == (3,)
    assert list(LeastRequestPicker(4).pick(asked, [], LAST))[2:] == [2, 0]


def test_round_robin_takes_turns():
    turns = [
        RoundRobinPicker().pick(some(3), [], PickContext(lambda _: 0, turn)) for turn in range(7)
    ]
    assert turns == [(0,), (1,), (2,), (0,), (1,), (2,), (0,)]


def test_random_can_pick_each():
    picks = {RandomPicker().pick(some(4), [9.0, 0, 0, 0], draw) for draw in (FIRST, LAST)}
    assert picks == {(0,), (3,)}


def prefill(seconds):
    return {"prefill_seconds": seconds, "class_prefill_seconds": seconds}


@pytest.mark.parametrize(
    ("busy", "alpha"),
    [(0, 1), (0.1, 1), (0.4, 0.8 / 0.6), (0.5, 2), (0.75, 6), (0.8, 8), (0.9, 8), (1, 8)],
)
def test_the_cost_of_a_first_token(busy, alpha):
    asked = candidate(
        queued_prefill_seconds=0.3,
        prefill_seconds=0.2,
        class_prefill_seconds=0.1,
        decode_seconds=0.01,
        busy_share=busy,
    )
    assert ttft_costs([asked]) == [pytest.approx(0.3 + 0.2 + alpha * 0.1 + 0.01)]


@pytest.mark.parametrize(
    ("busy", "picked"), [(0.0, 1), (0.5, 0)], ids=["idle fleet spreads", "busy fleet sticks"]
)
def test_recomputing_costs_more_in_a_busier_fleet(busy, picked):
    warm = candidate(queued_prefill_seconds=0.7, **prefill(0.1), busy_share=busy)
    cold = candidate(queued_prefill_seconds=0.0, **prefill(0.4), busy_share=busy)
    assert LeastTtftPicker().pick([warm, cold], [], FIRST) == (picked,)


@pytest.mark.parametrize(
    ("share", "weight"), [(0, 0), (0.001, 0.0015), (0.1, 0.15), (0.2, 0.3), (0.9, 0.3), (1, 0.3)]
)
def test_decoding_costs_by_the_share_of_first_tokens(share, weight):
    asked = candidate(generation_seconds=2.0, crowding_seconds=1.0, ttft_share=share)
    assert ttft_costs([asked]) == [pytest.approx(3 * weight)]


def test_a_slot_costs_a_tenth():
    assert ttft_costs([candidate(slot_seconds=1.5)]) == [pytest.approx(0.15)]


@given(asked=candidates(), data=st.data())
def test_every_picker_names_candidates(asked, data):
    for kind in PICKERS:
        picker = kind()
        assert isinstance(picker, Picker)
        (picked,) = picker.pick(asked, [0.5] * len(asked), drawn(data))
        assert 0 <= picked < len(asked)


@given(asked=candidates(), count=st.integers(2, 8), data=st.data())
def test_pickers_of_several_name_each_once(asked, count, data):
    totals = data.draw(
        st.lists(st.sampled_from((0.0, 0.5, 1.0)), min_size=len(asked), max_size=len(asked))
    )
    for kind in WITH_COUNT:
        picked = kind(count).pick(asked, totals, drawn(data))
        assert len(picked) == len(set(picked)) == min(count, len(asked))
        if kind is MaxScorePicker:
            assert [totals[each] for each in picked] == sorted(totals, reverse=True)[: len(picked)]


@given(asked=candidates(), data=st.data())
def test_least_ttft_picks_the_least(asked, data):
    (picked,) = LeastTtftPicker().pick(asked, [], drawn(data))
    costs = ttft_costs(asked)
    assert costs[picked] == min(costs)


def picked(asked, unseen=3.0, *, replica=0, replicas=4, turn=0):
    """Where a replica sends a request, as all see the same."""
    context = PickContext(lambda _: 0, turn, Unseen(unseen, replica, replicas))
    (position,) = LeastTtftPicker().pick(asked, [], context)
    return asked[position].endpoint.name


def round_of(asked, turns, unseen=3.0, **replica):
    return [picked(asked, unseen, turn=turn, **replica) for turn in range(turns)]


def test_each_replica_goes_round_its_part_of_endpoints_that_cost_the_same():
    asked = some(10, prefill_seconds=0.01)
    parts = [
        ["pod-0", "pod-1", "pod-2", "pod-0", "pod-1"],
        ["pod-2", "pod-3", "pod-4", "pod-3", "pod-4"],
        ["pod-5", "pod-6", "pod-7", "pod-5", "pod-6"],
        ["pod-7", "pod-8", "pod-9", "pod-8", "pod-9"],
    ]
    assert [round_of(asked, 5, replica=replica) for replica in range(4)] == parts
    assert [round_of(asked[::-1], 5, replica=replica) for replica in range(4)] == parts
    assert [round_of(asked, 5, 0.01, replica=replica) for replica in range(4)] == parts


@given(count=st.integers(1, 12), replicas=st.integers(1, 9))
def test_their_rounds_give_each_endpoint_as_much(count, replicas):
    asked = some(count, prefill_seconds=0.01)
    each_of = [{"replica": number, "replicas": replicas} for number in range(replicas)]
    rounds = [round_of(asked, count, **replica) for replica in each_of]
    given_to = Counter(name for each in rounds for name in each)
    assert given_to == {each.endpoint.name: replicas for each in asked}


def test_replicas_choose_as_one_where_nothing_of_others_is_under_way():
    asked = some(8, prefill_seconds=0.01)
    assert {picked(asked, 0.0, replica=replica) for replica in range(4)} == {"pod-0"}


@pytest.mark.parametrize(
    ("unseen", "queued", "goes_to"),
    [
        (3.0, 0.039, "pod-4"),
        (3.0, 0.041, "pod-0"),
        (1.0, 0.039, "pod-4"),
        (0.5, 0.019, "pod-4"),
        (0.5, 0.021, "pod-0"),
    ],
)
def test_a_turn_is_worth_four_prefills_or_less_if_less_is_under_way(unseen, queued, goes_to):
    asked = some(8, prefill_seconds=0.01)
    asked[4] = candidate("pod-4", prefill_seconds=0.01, queued_prefill_seconds=queued)
    assert picked(asked, unseen, replica=2) == goes_to


@pytest.mark.parametrize(("prefill", "goes_to"), [(0.0149, "pod-4"), (0.0151, "pod-0")])
def test_an_endpoint_that_takes_much_longer_has_no_turn(prefill, goes_to):
    asked = some(8, prefill_seconds=0.01)
    asked[4] = candidate("pod-4", prefill_seconds=prefill)
    assert picked(asked, replica=2) == goes_to


def test_what_a_cache_saves_is_worth_more_than_to_choose_apart():
    asked = some(7, prefill_seconds=0.5)
    asked.append(candidate("pod-7", prefill_seconds=0.01))
    assert {picked(asked, replica=number) for number in range(4)} == {"pod-7"}
