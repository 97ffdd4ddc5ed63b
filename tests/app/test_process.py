"""What the process does for all of its pickers."""

import asyncio
import gc
import sys
import weakref

import pytest

from epp.app import process
from epp.app.process import collect_garbage, give_back_freed_memory, interpreter_shared

PATIENCE = 30


class Knot:
    """Refers to itself: reference counts do not free it."""

    def __init__(self):
        self.itself = self


@pytest.fixture
async def collector():
    task = asyncio.create_task(collect_garbage())
    await asyncio.sleep(0)
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
async def test_cycles_are_freed_without_the_collector_of_cpython():
    assert not gc.isenabled()
    gone = weakref.ref(Knot())
    async with asyncio.timeout(PATIENCE):
        while gone() is not None:
            await asyncio.sleep(0)


async def test_the_collector_comes_back_with_the_end(collector):
    collector.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collector
    assert gc.isenabled()


@pytest.fixture
async def giving_back(monkeypatch):
    """Looks at the memory that a test sets all the time; a queue has what is kept each time."""
    size = [100 << 20]
    trims: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def trim():
        size[0] -= 10 << 20
        loop.call_soon_threadsafe(trims.put_nowait, size[0])

    monkeypatch.setattr(process, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(process, "resident_bytes", lambda: size[0])
    monkeypatch.setattr(process, "trim_freed_memory", trim)
    task = asyncio.create_task(give_back_freed_memory())
    yield size, trims
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def looked():
    """Let what looks all the time look several times."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_freed_memory_is_given_back_each_time_that_the_process_has_grown(giving_back):
    size, trims = giving_back
    await looked()
    for _ in range(2):
        size[0] += 32 << 20
        await looked()
        assert trims.empty()
        size[0] += 1
        async with asyncio.timeout(PATIENCE):
            assert await trims.get() == size[0]
        await looked()
        assert trims.empty()


async def test_a_process_that_has_become_small_is_looked_at_from_there(giving_back):
    size, trims = giving_back
    size[0] = 50 << 20
    await looked()
    size[0] = 83 << 20
    async with asyncio.timeout(PATIENCE):
        assert await trims.get() == 73 << 20


def test_threads_release_the_interpreter_soon_while_pickers_serve():
    before = sys.getswitchinterval()
    with interpreter_shared():
        assert sys.getswitchinterval() < before / 5
    assert sys.getswitchinterval() == before
