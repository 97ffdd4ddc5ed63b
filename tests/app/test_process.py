"""What the process does for all of its pickers."""

import asyncio
import gc
import signal
import sys
import weakref
from pathlib import Path

import grpc.aio
import pytest

from epp.app import process
from epp.app.process import (
    collect_garbage,
    give_back_freed_memory,
    short_switch_interval,
    stop_signals,
)
from epp.gateway.processes import free_port
from tests.adapters.ext_proc_peer import Peer, body, destination, head, kind, response_head
from tests.processes import HERE, PORTS

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
            await asyncio.sleep(0.001)


async def test_the_collector_comes_back_with_the_end(collector):
    collector.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collector
    assert gc.isenabled()


STOPPED = 3600.0


class Clock:
    """Each round takes a second; the process is stopped amid each full collection."""

    def __init__(self):
        self.now = 0.0
        self.full_at = []
        self.full = asyncio.Event()

    def collected(self, phase, info):
        if phase == "start" and info["generation"] < 2:
            self.now += 1.0
        elif phase == "start":
            self.full_at.append(self.now)
            self.now += STOPPED
            self.full.set()

    def monotonic(self):
        return self.now

    def thread_time(self):
        return 0.0


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(process, "time", made)
    monkeypatch.setattr(process, "_MIN_PAUSE", 0.0)
    monkeypatch.setattr(process, "_MAX_PAUSE", 0.0)
    gc.callbacks.append(made.collected)
    yield made
    gc.callbacks.remove(made.collected)


async def test_a_process_that_was_stopped_meanwhile_collects_everything_as_often(clock, collector):
    for _ in range(3):
        clock.full.clear()
        async with asyncio.timeout(PATIENCE):
            await clock.full.wait()
    first, second, third = clock.full_at
    assert not collector.done()
    assert first <= 61
    assert second - first <= STOPPED + 61
    assert third - second <= STOPPED + 61


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


async def test_a_process_that_was_stopped_meanwhile_gives_back_as_often(
    giving_back, clock, monkeypatch
):
    def trim():
        clock.now += STOPPED
        giving_back.trim()

    monkeypatch.setattr(process, "trim_freed_memory", trim)
    monkeypatch.setattr(process, "_TRIM_PAUSE", 200)
    giving_back.size = 500 << 20
    await giving_back.trimmed(3)


async def test_a_process_that_has_become_small_is_looked_at_from_there(giving_back):
    giving_back.size = 50 << 20
    assert not await giving_back.looked_at()
    giving_back.size = 83 << 20
    await giving_back.trimmed(1)


def test_threads_release_the_interpreter_soon_while_pickers_serve():
    before = sys.getswitchinterval()
    with short_switch_interval():
        assert sys.getswitchinterval() < before / 5
    assert sys.getswitchinterval() == before


async def test_a_terminal_that_hangs_up_stops_a_picker_in_order(hangups):
    stop = asyncio.Event()
    with stop_signals(stop):
        signal.raise_signal(signal.SIGHUP)
        assert hangups == []
        async with asyncio.timeout(PATIENCE):
            await stop.wait()


CLOSED = """
import asyncio, signal
from epp.app.process import stop_signals

async def drain():
    stop = asyncio.Event()
    with stop_signals(stop, lambda: print("at once")):
        for _ in range(2):  # bash sends one to its jobs, and the kernel one as bash ends
            signal.raise_signal(signal.SIGHUP)
            for _ in range(9):
                await asyncio.sleep(0)
        await stop.wait()
        print("drained")
        signal.raise_signal(signal.SIGTERM)
        await asyncio.Event().wait()

asyncio.run(drain())
"""


async def test_a_terminal_that_is_closed_hangs_up_twice_which_hurries_nobody():
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLOSED, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        said, _ = await running.communicate()
    assert said.split() == [b"drained", b"at", b"once"]
    assert running.returncode == 128 + signal.SIGTERM


@pytest.mark.usefixtures("hangups")
async def test_but_not_one_that_was_started_to_go_on():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup(1)
    stop = asyncio.Event()
    with stop_signals(stop):
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


async def test_a_picker_whose_log_cannot_be_written_serves_and_drains(tmp_path):
    ports = {name: free_port() for name in PORTS}
    pod = f"127.0.0.1:{free_port()}"  # nobody listens there, which is logged first of all
    (tmp_path / "pods.yaml").write_text(
        f"endpoints: [{{name: a, address: 127.0.0.1, port: {pod[10:]}}}]"
    )
    with Path("/dev/full").open("w") as full:
        picker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "epp", "serve", "--endpoints-file=pods.yaml", *HERE),
            *(f"--{name}={port}" for name, port in ports.items()),
            *("--secure-serving=false", "--log-level=debug"),
            cwd=tmp_path,
            stderr=full,
        )
    try:
        async with (
            asyncio.timeout(PATIENCE),
            grpc.aio.insecure_channel(f"127.0.0.1:{ports['grpc-port']}") as channel,
        ):
            await channel.channel_ready()
            rejected = await Peer(channel).ask(head(), body(b"no JSON"))
            assert rejected.immediate_response.status.code == 400
            peer = Peer(channel)
            routed = await peer.ask(head(), body())
            assert destination(routed, "request_headers") == pod.encode()
            picker.send_signal(signal.SIGTERM)
            await peer.send(response_head(end=True))
            assert [kind(each) for each in await peer.rest()] == [
                "request_body",
                "response_headers",
            ]
            assert await picker.wait() == 0
    finally:
        if picker.returncode is None:
            picker.kill()
            await picker.wait()
