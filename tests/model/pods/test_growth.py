"""Growth: the most that requests hold at once, beside a count at every moment."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.learning.survival import QUARTERS
from epp.model.pods.growth import Growth

EXACT = st.integers(0, 7)
"""Lengths that have a class of their own."""
requests = st.tuples(st.integers(1, 4), EXACT, st.integers(0, 50), st.just(0.0))
any_requests = st.tuples(
    st.integers(1, 128),
    st.floats(0, 1e8),
    st.integers(0, 10**7),
    st.floats(0, 1),
)


def as_added(asked):
    answers, each, freed, spread = asked
    return answers, answers * each, freed, spread


def growth_of(asked):
    growth = Growth()
    for each in asked:
        growth.add(*as_added(each))
    return growth


def counted(asked):
    """What is held more than now, at most, by counting at the last token of each."""
    return max(
        (
            sum(answers * moment if each >= moment else -freed for answers, each, freed, _ in asked)
            for moment in {each for _, each, _, _ in asked}
        ),
        default=0,
    )


@given(st.lists(requests, max_size=12))
def test_the_most_is_that_of_every_moment(asked):
    assert growth_of(asked).most() == pytest.approx(max(0, counted(asked)))


@given(st.lists(any_requests, max_size=12), st.randoms(use_true_random=False))
def test_it_is_no_more_than_all_that_comes_and_nothing_once_all_are_gone(asked, chance):
    growth = growth_of(asked)
    total = sum(answers * each for answers, each, _, _ in asked)
    assert growth.total == pytest.approx(total)
    assert 0 <= growth.most() <= growth.total * (1 + 1e-9)
    chance.shuffle(asked)
    for each in asked:
        growth.remove(*as_added(each))
    assert growth.most() == 0
    assert growth.total == pytest.approx(0, abs=total * 1e-9)


@given(st.randoms(use_true_random=True), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_after_any_history_it_is_what_those_that_are_left_make(chance, kept):
    growth, there = Growth(), []
    for _ in range(3000):
        answers, spread = chance.choice((1, 1, 4, 128)), chance.random()
        coming = answers * chance.choice((0.1, 3.0, 700.3, 65_536.7, 1e8)) * chance.random()
        there.append((answers, coming, chance.randrange(10**7), spread))
        growth.add(*there[-1])
        growth.most()
        while len(there) > kept * chance.randrange(1, 9):
            growth.remove(*there.pop(chance.randrange(len(there))))
    anew = Growth()
    for each in there:
        anew.add(*each)
    assert growth.most() == pytest.approx(anew.most(), rel=1e-6, abs=1e-2)
    assert growth.total == pytest.approx(anew.total, rel=1e-6, abs=1e-2)


@pytest.mark.parametrize("length", [1, 7, 100, 12_345, 1 << 22])
def test_of_those_that_began_together_all_is_held_at_once(length):
    assert growth_of([(1, length, 500, 0.0)] * 10).most() == pytest.approx(10 * length)


def test_of_those_that_began_one_after_the_other_little_is():
    """As one ends with all that it has, the others have generated one token each."""
    staggered = [(1, left, 800 - left, 0.0) for left in range(800)]
    growth = growth_of(staggered)
    assert growth.total == sum(range(800))
    assert growth.most() < 0.05 * growth.total


def test_a_prompt_that_stays_is_not_freed():
    assert growth_of([(1, 2, 0, 0.0), (1, 6, 0, 0.0)]).most() == pytest.approx(6)
    assert growth_of([(1, 2, 4, 0.0), (1, 6, 0, 0.0)]).most() == pytest.approx(4)


@given(st.lists(requests, max_size=12), st.integers(1, 4), st.integers(1, 7), st.integers(0, 50))
def test_beside_a_request_that_comes_only_what_is_held_until_it_has_ended_counts(
    asked, answers, each, freed
):
    """It has after 2.386 times as many tokens as it is expected to have."""
    until = 2.386 * each
    there = [*asked, (answers, each, freed, 0.0)]
    moments = [until, *(moment for _, moment, _, _ in there if moment <= until)]
    held = [
        sum(count * moment if length >= moment else -free for count, length, free, _ in there)
        for moment in moments
    ]
    most = growth_of(asked).most(answers, float(each), float(freed))
    assert most == pytest.approx(max(0, *held))


def test_a_request_without_answers_adds_nothing_to_come():
    growth = growth_of([(1, 1000, 500, 0.0)] * 10)
    assert growth.most(0, 200.0, 9000.0) == growth.most() == pytest.approx(10_000)


def test_of_those_whose_lengths_are_exponential_as_many_end_as_grow():
    """Each is to have as many tokens as it has, at any age: nothing more is held on average."""
    growth = growth_of([(1, 8000, 8000, 1.0)] * 20)
    assert growth.most() < 0.05 * growth.total


def test_the_quarters_of_lengths_have_their_mean():
    assert sum(QUARTERS) == pytest.approx(0)
