"""Turns on the event loop."""

import asyncio
import time

from epp.adapters.extproc.turns import Turns


class Taker:
    def __init__(self, name, work, order, seconds=0.0):
        self.name, self.work, self.order, self.seconds = name, work, order, seconds

    def take_turn(self):
        self.order.append(self.name)
        busy_until = time.monotonic() + self.seconds
        while time.monotonic() < busy_until:
            pass
        self.work -= 1
        return self.work > 0


async def quiet(turns):
    async with asyncio.timeout(10):
        while turns.crowded:
            await asyncio.sleep(0)


async def test_little_is_not_behind_the_much_of_many():
    turns = Turns()
    order: list[int | str] = []
    for number in range(200):
        turns.go_on(Taker(number, 3, order))
    turns.arrive(Taker("little", 1, order))
    turns.arrive(Taker("little, too", 1, order))
    await quiet(turns)
    assert order[:4] == ["little", 0, "little, too", 1]
    assert len(order) == 602


async def test_those_with_much_go_round_in_circles():
    turns = Turns()
    order: list[str] = []
    for name in "abc":
        turns.go_on(Taker(name, 3, order))
    await quiet(turns)
    assert order == [*"abcabcabc"]


async def test_the_loop_goes_on_between_turns():
    """However much waits, sockets and timers are looked at every few turns."""
    turns, looks = Turns(), 0
    order: list[str] = []
    turns.go_on(Taker("much", 40, order, seconds=0.002))
    while turns.crowded:
        await asyncio.sleep(0)
        looks += 1
    assert len(order) == 40
    assert looks >= 10


async def test_many_that_are_read_at_one_look_at_the_sockets_wait_for_turns():
    turns = Turns()
    order: list[str] = []
    waits = [turns.crowd(0) for _ in range(100)]
    assert waits == sorted(waits)
    assert 8 < waits.count(False) < 50
    turns.arrive(Taker("late", 1, order))
    await quiet(turns)
    assert order == ["late"]
    assert not turns.crowd(0)


def test_few_that_are_read_again_and_again_do_not_wait():
    turns, looks = Turns(), [0] * 16
    for number in range(1_000):
        assert not turns.crowd(looks[number % 16])
        looks[number % 16] = turns.look
