"""Of several things that are awaited, the first decides, and nothing is left running."""

import asyncio

import pytest

from epp.system.race import race


async def never(ended):
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(True)


async def fails():
    raise LookupError("mine")


async def test_the_first_one_ends_the_others():
    ended = list[bool]()
    await race(asyncio.sleep(0), never(ended), never(ended))
    assert ended == [True, True]


async def test_what_the_first_one_raises_is_raised_once_the_others_have_ended():
    ended = list[bool]()
    with pytest.raises(LookupError, match="mine"):
        await race(never(ended), fails())
    assert ended == [True]


async def test_a_caller_that_is_cancelled_cancels_all():
    ended = list[bool]()
    task = asyncio.create_task(race(never(ended), never(ended)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True, True]
