"""What is expected of answers that nobody sees, from those that were seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.learning.output_lengths import OutputLengths

ASKED = ("a model", True)
WHOLE = ("a model", False)


def test_nothing_is_known_at_first():
    answers = OutputLengths()
    assert answers.length(ASKED) == 256


@pytest.mark.parametrize(
    ("most", "expected"), [(None, 100), (1000, 100), (100, 100), (7, 7), (0, 1)]
)
def test_a_clients_limit_counts(most, expected):
    answers = OutputLengths()
    answers.record_length(ASKED, 100)
    assert answers.length(WHOLE, most) == expected
    for kind in (ASKED, WHOLE):
        assert answers.remaining(kind, most, 80) <= (1000 if most is None else max(0, most - 80))


def test_models_and_kinds_are_told_apart():
    answers = OutputLengths()
    answers.record_length(ASKED, 100)
    assert answers.length(WHOLE) == 100  # better than nothing
    answers.record_length(WHOLE, 10)
    assert (answers.length(ASKED), answers.length(WHOLE)) == (100, 10)
    assert answers.length(("other", True)) == 256


def test_what_nobody_counted_teaches_nothing():
    answers = OutputLengths()
    answers.record_length(ASKED, 0)
    assert answers.length(ASKED) == 256


def averaged(lengths):
    """Return the expected length, and whether it was begun anew: it was settled, and is not."""
    answers, settled = OutputLengths(), [False]
    for length in lengths:
        answers.record_length(ASKED, length)
        settled.append(answers.settled(ASKED))
    return answers.length(ASKED), settled != sorted(settled)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=50))
def test_up_to_fifty_are_averaged_unless_it_begins_anew(lengths):
    length, anew = averaged(lengths)
    assert anew or length == pytest.approx(sum(lengths) / len(lengths))
    assert not anew or len(lengths) > 16


@given(st.data(), st.integers(100, 10_000))
def test_up_to_fifty_that_differ_by_less_than_a_tenth_are_averaged(data, least):
    # Less than 0.1 lies between any two logarithms: no drift is a change.
    near = st.integers(least, least + least // 10)
    lengths = data.draw(st.lists(near, min_size=1, max_size=50))
    assert averaged(lengths) == (pytest.approx(sum(lengths) / len(lengths)), False)


def test_what_changes_is_followed():
    answers = OutputLengths()
    for length in [100] * 1000 + [500] * 200:
        answers.record_length(ASKED, length)
    assert 490 < answers.length(ASKED) <= 500


def test_a_mean_is_settled_with_enough_values():
    answers = OutputLengths()
    settled = []
    for number in range(20):
        settled.append(answers.settled(ASKED))
        answers.record_length(ASKED, 100 + number % 2)
    assert settled == [False] * 16 + [True] * 4
    assert not answers.settled(WHOLE)


LENGTHS = [50, 150, 80, 120] * 20


def test_where_the_last_ones_are_others_it_begins_anew():
    answers = OutputLengths()
    for length in LENGTHS:
        answers.record_length(ASKED, length)
    assert answers.length(ASKED) == pytest.approx(100, rel=0.05)
    for length in LENGTHS[:16]:
        answers.record_length(ASKED, length + 400)
    assert answers.length(ASKED) == pytest.approx(500, rel=0.1)


def test_no_response_is_longer_than_it_may_be():
    answers = OutputLengths()
    for length in (10**9, *LENGTHS, 10**9):
        answers.record_length(ASKED, length, 50)
    assert answers.length(ASKED, 50) <= 50
    assert answers.length(ASKED) <= 50


def test_one_absurd_length_among_the_first_counts_for_what_a_response_may_have():
    answers = OutputLengths()
    for length in (200, 200, 1 << 24, 200):
        answers.record_length(ASKED, length)
    assert answers.length(ASKED) == (3 * 200 + 16384) / 4
    assert answers.remaining(ASKED, None, 300) < 16384


def test_a_single_one_that_is_very_long_is_no_change():
    answers = OutputLengths()
    for length in LENGTHS:
        answers.record_length(ASKED, length)
    answers.record_length(ASKED, 10_000)
    assert answers.settled(ASKED)
    assert answers.length(ASKED) == pytest.approx(100 + (32 - 1) * 100 / 50, rel=0.05)


def test_a_value_that_stands_for_many_counts_for_more_than_others():
    answers, seen = OutputLengths(), []
    for _ in range(500):
        answers.record_length(ASKED, 100, weight=9)
        answers.record_length(ASKED, 200, weight=1)
        seen.append(answers.length(ASKED))
    assert sum(seen) / len(seen) == pytest.approx(110, abs=3)


@pytest.mark.parametrize(
    ("lengths", "spread"),
    [([500], 0.0), ([100, 300], 0.5), ([10, 10, 10, 370], 1.0)],
    ids=["all the same", "half of them thrice the others", "a few that are far longer"],
)
def test_how_far_lengths_are_from_the_mean_of_their_kind_is_learned(lengths, spread):
    answers = OutputLengths()
    for _ in range(200):
        for length in lengths:
            answers.record_length(ASKED, length)
            answers.record_length(WHOLE, 7)
    others_spread = 0.0  # those of the other kind are all the same
    assert answers.spread == pytest.approx((spread + others_spread) / 2, abs=0.1)
