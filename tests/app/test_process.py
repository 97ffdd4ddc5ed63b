"""What the process does for all of its pickers."""

import asyncio
import gc
import sys
import weakref

import pytest

from epp.app import process
from epp.app.process import (
    YOUNG_OBJECTS,
    collect_garbage,
    freeze_long_lived_objects,
    give_back_freed_memory,
    interpreter_shared,
)

PATIENCE = 30


class Knot:
    """Refers to itself: reference counts do not free it."""

    def __init__(self):
        self.itself = self


@pytest.fixture
async def collector():
    thresholds = gc.get_threshold()
    task = asyncio.create_task(collect_garbage())
    await asyncio.sleep(0)
    assert not gc.isenabled()
    freeze_long_lived_objects()
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gc.unfreeze()
    assert gc.isenabled()
    assert gc.get_threshold() == thresholds


@pytest.fixture
def collections():
    """The generations that are collected."""
    seen = []

    def note(phase, info):
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


@pytest.mark.usefixtures("collector")
async def test_cycles_are_freed_once_many_objects_were_made():
    gone = weakref.ref(Knot())
    made = [Knot() for _ in range(YOUNG_OBJECTS)]
    assert gone() is None
    assert all(each.itself is each for each in made)


@pytest.mark.usefixtures("collector")
async def test_what_was_collected_is_not_gone_through_again(collections):
    made = [Knot() for _ in range(20 * YOUNG_OBJECTS)]
    assert set(collections) == {0, 1}
    assert len(collections) <= len(made) // YOUNG_OBJECTS * 2  # an object, and its dictionary


@pytest.mark.usefixtures("collector")
async def test_nothing_is_collected_while_nothing_is_made(collections):
    for _ in range(1000):
        await asyncio.sleep(0)
    assert collections == []


@pytest.fixture
async def giving_back(monkeypatch):
    """Looks at the memory that a test sets all the time; `freed` of it is given back by a trim."""
    memory = Memory()
    monkeypatch.setattr(process, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(process, "_TRIM_PAUSE", 0)
    monkeypatch.setattr(process, "resident_bytes", lambda: memory.size)
    monkeypatch.setattr(process, "trim_freed_memory", memory.trim)
    task = asyncio.create_task(give_back_freed_memory())
    yield memory
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Memory:
    """The memory of a process, of which some is freed, but not given back."""

    def __init__(self):
        self.size = 100 << 20
        self.freed = self.trims = 0

    def trim(self):
        self.size -= self.freed
        self.freed = 0
        self.trims += 1

    async def trimmed(self, times):
        async with asyncio.timeout(PATIENCE):
            while self.trims < times:
                await asyncio.sleep(0)

    async def looked_at(self):
        """Let what looks all the time look several times; return whether it trimmed."""
        before = self.trims
        for _ in range(20):
            await asyncio.sleep(0)
        return self.trims > before


async def test_freed_memory_is_given_back_each_time_that_the_process_has_grown(giving_back):
    assert not await giving_back.looked_at()
    for times in (1, 2):
        giving_back.size += 32 << 20
        assert not await giving_back.looked_at()
        giving_back.freed = 32 << 20
        giving_back.size += 1
        await giving_back.trimmed(times)
        giving_back.size = 100 << 20
        assert not await giving_back.looked_at()


async def test_what_was_in_use_is_given_back_once_it_is_freed(giving_back):
    giving_back.size = 500 << 20
    await giving_back.trimmed(3)
    giving_back.freed = 400 << 20
    async with asyncio.timeout(PATIENCE):
        while giving_back.size > 100 << 20:
            await asyncio.sleep(0)
    await giving_back.looked_at()
    assert not await giving_back.looked_at()


async def test_a_process_that_has_become_small_is_looked_at_from_there(giving_back):
    giving_back.size = 50 << 20
    assert not await giving_back.looked_at()
    giving_back.size = 83 << 20
    await giving_back.trimmed(1)


def test_threads_release_the_interpreter_soon_while_pickers_serve():
    before = sys.getswitchinterval()
    with interpreter_shared():
        assert sys.getswitchinterval() < before / 5
    assert sys.getswitchinterval() == before
