"""What the process does for all of its pickers."""

import asyncio
import gc
import sys
import weakref

import pytest

from epp.app import process
from epp.app.process import collect_garbage, interpreter_shared
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.kv_changes import BlocksRemoved, BlocksStored, CacheChanged

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
async def trimmed(monkeypatch):
    """An event that is set when freed memory goes back to the kernel."""
    made = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(process, "_MANY", 3)
    monkeypatch.setattr(process, "_MANY_BLOCKS", 5)
    monkeypatch.setattr(process, "_LATER_SECONDS", 0.0)
    monkeypatch.setattr(process, "trim_freed_memory", lambda: loop.call_soon_threadsafe(made.set))
    return made


async def test_the_memory_of_many_endpoints_that_are_gone_is_given_back(trimmed):
    memory = process.FreedMemory()
    for _ in range(2):
        memory.removed()
    await asyncio.sleep(0)
    assert not trimmed.is_set()
    memory.removed()
    await asyncio.wait_for(trimmed.wait(), 10)


def stored(*hashes):
    return CacheChanged(
        EndpointId("a"), [BlocksStored(hashes, None, b"", 0), BlocksRemoved(hashes)]
    )


async def test_what_tables_of_blocks_leave_in_the_heap_is_given_back(trimmed):
    applied: list[object] = []
    count = process.FreedMemory().counting(applied.append)
    events = [stored(1, 2), EndpointRemoved(EndpointId("a")), stored(3, 4)]
    for each in events:
        count(each)
    await asyncio.sleep(0)
    assert not trimmed.is_set()
    assert applied == events
    count(stored(5))
    await asyncio.wait_for(trimmed.wait(), 10)


async def test_a_process_that_has_not_grown_gives_nothing_back(trimmed, monkeypatch):
    monkeypatch.setattr(process, "_MUCH_BYTES", 1 << 50)
    count = process.FreedMemory().counting(lambda _: None)
    for _ in range(10):
        count(stored(1, 2, 3))
    await asyncio.sleep(0)
    assert not trimmed.is_set()


def test_threads_release_the_interpreter_soon_while_pickers_serve():
    before = sys.getswitchinterval()
    with interpreter_shared():
        assert sys.getswitchinterval() < before / 5
    assert sys.getswitchinterval() == before
