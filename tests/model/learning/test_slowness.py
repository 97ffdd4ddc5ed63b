"""Slowness: what sets an endpoint apart from its class, how fast it is learned and forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.learning.slowness import ClassSlowness, Slowness


def measured(slowness, ratios, *, expected=1.0, now=0.0):
    for ratio in ratios:
        slowness.learn(expected, ratio * expected, now)
    return slowness


@pytest.mark.parametrize("ratio", [0.1, 0.4, 1.0, 2.5, 10.0])
def test_it_is_learned_within_a_hundred_measurements(ratio):
    assert measured(Slowness(ClassSlowness()), [ratio] * 100).value == pytest.approx(ratio, rel=0.1)


def test_a_change_is_followed():
    slowness = measured(Slowness(ClassSlowness()), [1.0] * 50)
    assert measured(slowness, [10.0] * 100).value == pytest.approx(10, rel=0.1)
    assert measured(slowness, [1.0] * 150).value == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("outlier", [1e-6, 1e6])
def test_one_outlier_changes_little(outlier):
    slowness = measured(Slowness(ClassSlowness()), [1.0] * 50 + [outlier])
    assert 0.95 < slowness.value < 1.06


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=20), st.randoms())
def test_what_is_taken_back_was_never_learned_in_whatever_order(ratios, chance):
    of_class = ClassSlowness()
    slowness = measured(Slowness(of_class), [1.5] * 50)
    before = slowness.value
    taught = [slowness.learn(1.0, ratio, 0.0) for ratio in ratios]
    chance.shuffle(taught)
    for each in taught:
        slowness.take_back(each)
    assert slowness.value == pytest.approx(before)
    assert of_class.mean == pytest.approx(slowness.state[0])


def test_to_take_back_says_nothing_of_one_that_was_not_measured_since():
    slowness = Slowness(ClassSlowness())
    taught = slowness.learn(1.0, 2.0, 0.0)
    slowness.join(ClassSlowness())
    slowness.take_back(taught)
    assert slowness.value == 1.0


def test_errors_are_on_the_high_side():
    noisy = measured(Slowness(ClassSlowness()), [0.25, 4.0] * 100)
    assert noisy.value > 1


def test_one_endpoint_says_nothing_of_another():
    of_class = ClassSlowness()
    first, second = Slowness(of_class), Slowness(of_class)
    measured(first, [1.0] * 20)
    measured(second, [10.0] * 100)
    assert first.value == 1.0


def test_an_unknown_endpoint_is_like_the_others_of_its_class():
    of_class = ClassSlowness()
    for ratio in (1.0, 4.0):
        measured(Slowness(of_class), [ratio] * 200)
    assert Slowness(of_class).value == pytest.approx(2.0, rel=0.1)
    assert Slowness(ClassSlowness()).value == 1.0


def test_one_that_left_counts_no_more():
    of_class = ClassSlowness()
    measured(Slowness(of_class), [1.0] * 20)
    gone = measured(Slowness(of_class), [50.0] * 200)
    other = ClassSlowness()
    gone.join(other)
    assert gone.value == 1.0
    measured(gone, [50.0] * 20)  # of what it still had to do
    assert (of_class.count, other.count) == (1, 1)
    assert Slowness(of_class).value == pytest.approx(1.0)


def test_old_measurements_fade_to_the_mean_of_the_class():
    of_class = ClassSlowness()
    measured(Slowness(of_class), [1.0] * 20)
    slow = measured(Slowness(of_class), [10.0] * 200, now=100.0)
    known = slow.value
    slow.fade(150.0)
    assert slow.value == known
    for now in range(200, 4000, 10):
        slow.fade(float(now))
    assert slow.value < 2


def test_what_fades_counts_for_no_more_than_before():
    faded, fresh = (measured(Slowness(ClassSlowness()), [2.0], expected=0.01) for _ in range(2))
    for now in range(60, 600, 60):
        faded.fade(float(now))
    before = faded.value, fresh.value
    steps = [
        measured(each, [2.0]).value / was for each, was in zip((faded, fresh), before, strict=True)
    ]
    assert steps[0] >= steps[1]


@pytest.mark.parametrize(("expected", "seconds"), [(1e308, 1e-300), (1e-300, 1e308)])
def test_what_is_beyond_a_float_is_a_measurement(expected, seconds):
    slowness = Slowness(ClassSlowness())
    slowness.learn(expected, seconds, 0.0)
    assert (slowness.value < 1) == (seconds < expected)


def test_small_measurements_weigh_less():
    small = measured(Slowness(ClassSlowness()), [2.0] * 3, expected=0.001)
    large = measured(Slowness(ClassSlowness()), [2.0] * 3, expected=1.0)
    assert 1 < small.value < large.value < 2


@given(st.lists(st.tuples(st.floats(-1, 1e9), st.floats(-1, 1e9), st.floats(0, 1e6)), max_size=60))
def test_garbage_keeps_it_in_bounds(samples):
    of_class, now = ClassSlowness(), 0.0
    slowness = Slowness(of_class)
    for expected, seconds, apart in samples:
        now += apart
        slowness.learn(expected, seconds, now)
        slowness.fade(now)
        assert 0.0099 <= slowness.value <= 101
        assert 0 < Slowness(of_class).value < 101


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.05, 20)), max_size=60), st.floats(0.2, 5.0)
)
def test_what_a_class_takes_over_changes_nothing_of_measured_endpoints(samples, times):
    of_class = ClassSlowness()
    endpoints = [Slowness(of_class) for _ in range(4)]
    for which, ratio in [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0), *samples]:
        measured(endpoints[which], [ratio])
    before = [each.value for each in endpoints]
    relative = [each.relative for each in endpoints]
    of_class.rescale(times)
    assert [each.value * times for each in endpoints] == pytest.approx(before)
    assert [each.relative for each in endpoints] == pytest.approx(relative)
    assert [each.by_first_prediction for each in endpoints] == pytest.approx(before)


def test_one_that_was_not_measured_goes_with_its_class():
    of_class = ClassSlowness()
    known, unknown = Slowness(of_class), Slowness(of_class)
    measured(known, [4.0] * 100)
    of_class.rescale(4.0)
    assert known.value == pytest.approx(1.0, rel=0.1)
    assert unknown.value == 1.0
    of_class.rescale(0.5)  # nothing was measured of either
    assert known.value == pytest.approx(1.0, rel=0.1)


def test_what_was_sent_before_a_class_took_over_teaches_the_same_as_what_is_sent_after():
    of_class = ClassSlowness()
    slowness = measured(Slowness(of_class), [4.0] * 100)
    expected = 1.0  # of something that is sent now
    of_class.rescale(4.0)
    for _ in range(100):
        slowness.learn(expected, 4.0, 0.0)
    assert slowness.value == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(("seconds", "near"), [(0.0, False), (180.0, True)])
def test_one_halfway_to_the_others_is_soon_like_them(seconds, near):
    of_class = ClassSlowness()
    for _ in range(7):
        measured(Slowness(of_class), [1.0] * 20)
    slow = measured(Slowness(of_class), [10.0] * 100)
    measured(slow, [1.0] * 5)
    slow.fade(seconds)
    assert (slow.value < 2.0) == near
