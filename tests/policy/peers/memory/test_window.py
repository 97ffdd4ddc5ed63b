"""Sums over the last seconds: against all that was added."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.policy.peers.memory.window import WindowSum


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 9)), max_size=30), st.integers(1, 6))
def test_what_was_added_in_a_second_of_the_window_counts(added, seconds):
    window, now, all_of_it = WindowSum(seconds), 0.0, []
    for gap, amount in added:
        now += gap
        window.add(now, amount)
        all_of_it.append((now, amount))
        expected = sum(amount for at, amount in all_of_it if int(at) >= int(now - seconds))
        assert window.total(now) == pytest.approx(expected)
        assert len(window._added) <= seconds + 1


def test_nothing_is_left_of_what_is_over():
    window = WindowSum(10)
    for _ in range(10):
        window.add(1.0, 0.1)
    assert window.total(11.9) == pytest.approx(1)
    assert window.total(12) == 0
