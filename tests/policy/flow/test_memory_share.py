"""The share of memory falls while decoding saturates, comes back, and does not swing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.policy.flow.memory_share import MemoryShare
from tests.policy.flow.flow_rig import LONG, FlowRig


def after(share, seconds, waiting, steps, start=0.0):
    """Update the share once a second; return all its values."""
    values = []
    for second in range(int(seconds)):
        share.update(waiting, steps, start + second)
        values.append(share.value)
    return values


@pytest.mark.parametrize(
    ("waiting", "steps", "value"),
    [(0.0, 1.0, 0.7), (2.0, 30.0, 0.7), (10.0, 5.0, 0.7), (10.0, 30.0, 0.5)],
    ids=["at rest", "a little waits", "steps are short", "saturated"],
)
def test_it_falls_only_if_much_waits_and_steps_are_long(waiting, steps, value):
    share = MemoryShare(0.5, 0.7)
    assert after(share, 60, waiting, steps)[-1] == pytest.approx(value)


def test_it_comes_back():
    share = MemoryShare(0.5, 0.7)
    after(share, 60, 10.0, 30.0)
    assert after(share, 120, 0.0, 1.0, start=60.0)[-1] == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("steps", "share"), [(1.0, 0.9), (4.0, 0.9), (7.0, 0.8), (10.0, 0.7), (40.0, 0.7)]
)
def test_where_steps_are_short_it_is_more(steps, share):
    assert MemoryShare(0.5, 0.7, while_short=0.9).at(steps) == pytest.approx(share)


@pytest.mark.parametrize("steps", [1.0, 40.0])
def test_what_is_no_more_while_steps_are_short_is_the_share(steps):
    assert MemoryShare(0.5, 0.7, while_short=0.6).at(steps) == 0.7


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e3), st.floats(-1e6, 1e6)), max_size=60))
def test_it_keeps_its_bounds_whatever_comes(updates):
    share = MemoryShare(0.5, 0.7)
    for waiting, steps, now in updates:
        share.update(waiting, steps, now)
        assert 0.5 <= share.value <= 0.7


@pytest.mark.parametrize(
    ("pods", "running", "waiting", "falls"),
    [(1, 3000.0, 20, True), (1, 1.0, 20, False), (1, 3000.0, 2, False), (8, 3000.0, 20, False)],
    ids=["saturated", "steps are short", "a little waits", "a little waits for each"],
)
def test_it_falls_while_much_waits_for_each_endpoint(pods, running, waiting, falls):
    rig = FlowRig(pods=pods)
    names = [f"pod-{number}" for number in range(pods)]
    for name in names:
        rig.say(name, running=running, kv_usage=1.0)
    assert [rig.come(str(number), LONG) for number in range(waiting)] == [None] * waiting
    for _ in range(3):
        rig.wait(1)
        for name in names:
            rig.say(name, running=running, kv_usage=1.0)
    share = rig.flow.placement.share
    assert (share.value < rig.flow.settings.most_memory) is falls


@pytest.mark.parametrize("load", [0.9, 1.0, 1.05, 1.2, 1.5])
def test_in_a_fleet_that_it_controls_it_neither_swings_nor_sticks(load):
    """In a fluid fleet a smaller share means shorter steps, and a little less that is served."""
    share = MemoryShare(0.5, 0.7)
    waiting, values, second = 0.0, [], 0
    for second in range(1200):
        busy = second < 300
        served = 1.0 - 0.05 * (0.7 - share.value) / 0.2
        waiting = max(0.0, waiting + (load if busy else 0.3) - served)
        steps = 25.0 * share.value / 0.7 if waiting or (load > 0.95 and busy) else 5.0
        share.update(waiting, steps, float(second))
        values.append(share.value)
    turns = sum(
        (b - a) * (c - b) < 0 for a, b, c in zip(values, values[1:], values[2:], strict=False)
    )
    assert turns <= 4
    assert values[-1] == pytest.approx(0.7)
