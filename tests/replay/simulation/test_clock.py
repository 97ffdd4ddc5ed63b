"""Virtual time goes in order, and as fast as it can."""

from functools import partial

from epp.replay.simulation.clock import Clock


def test_what_is_planned_happens_in_order_of_time_and_then_of_asking():
    clock, seen = Clock(), []

    def note(name):
        seen.append((clock.now, name))

    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        clock.at(when, partial(note, name))
    clock.at(3.0, lambda: clock.at(1.0, partial(note, "late")))
    clock.run(lambda: False)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (3.0, "late")]


def test_the_clock_stops_when_it_is_over():
    clock, seen = Clock(), []
    for when in range(5):
        clock.at(float(when), lambda: seen.append(clock.now))
    clock.run(lambda: len(seen) == 2)
    assert seen == [0.0, 1.0]
