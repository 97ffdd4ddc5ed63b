"""A result for several readers, who come and go while it is made."""

import asyncio

import pytest

from epp.system.shared_result import SharedResult


class Making:
    """Makes 1, 2, ... when it is told to; `now` is the time in seconds."""

    def __init__(self):
        self.made, self.now = 0, 0.0
        self.may = asyncio.Event()
        self.result = SharedResult(self.make, 1.0, lambda: self.now)

    async def make(self):
        self.made += 1
        number = self.made
        await self.may.wait()
        if number == 1 and self.now == 0:
            raise OSError("the first one")
        return number

    async def reader(self):
        """A reader that has begun to wait."""
        task = asyncio.ensure_future(self.result.get())
        for _ in range(2):  # it asks, and what it asks for begins
            await asyncio.sleep(0)
        return task


async def test_what_takes_longer_than_it_is_kept_is_not_made_twice_at_once():
    making = Making()
    first = await making.reader()
    making.now = 5
    second = await making.reader()
    making.may.set()
    assert (await first, await second, making.made) == (1, 1, 1)
    assert (await making.result.get(), await making.result.get(), making.made) == (2, 2, 2)


async def test_what_could_not_be_made_is_made_again_once_it_would_be_old():
    making = Making()
    making.may.set()
    for now in (0, 0.9):
        making.now = now
        with pytest.raises(OSError, match="the first one"):
            await making.result.get()
    making.now = 1
    assert (await making.result.get(), making.made) == (2, 2)


async def test_a_reader_that_goes_away_leaves_it_to_the_others():
    making = Making()
    first, second = await making.reader(), await making.reader()
    first.cancel()
    making.now = 0.5
    making.may.set()
    assert (await second, making.made) == (1, 1)
    assert first.cancelled()
