"""Workers that are started, passed connections, and started again: processes with real links."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time

import pytest
from structlog.testing import capture_logs

from epp.app.workers.supervisor import Supervisor, WorkerEnded
from tests.processes import no_descriptor_left
from tests.tasks import until

DEADLINE = 30
PROGRAM = """
import asyncio, os, pathlib, signal, sys
from epp.adapters.workers.link import WorkerState, link_of

kept = []
link = link_of(os.environ)
if str(link.start.number) in sys.argv[1:]:
    sys.exit(3)
stuck = pathlib.Path(link.start.folder, f"stuck-{link.start.number}")
if stuck.exists():
    stuck.unlink()
    signal.pause()


def say():
    link.send_state(WorkerState(listening=True, ready=True, taken=taken, open=len(kept)))


def take(connection):
    global taken
    taken += 1
    kept.append(connection)
    say()


def shed(connections):
    for _ in range(connections):
        kept.pop().close()
    say()


async def main():
    gone = asyncio.Event()
    link.open(take, shed, gone.set)
    while True:
        say()
        try:
            await asyncio.wait_for(gone.wait(), 0.2)
        except TimeoutError:
            continue
        return

taken = 0
asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def supervised(folder, *broken, count=2):
    """Workers of which those in `broken` end as they start."""
    made = Supervisor(
        count, folder, [sys.executable, "-c", PROGRAM, *map(str, broken)], lambda: None
    )
    task = asyncio.create_task(made.run())
    try:
        yield made, task
    finally:
        made.stop()
        await asyncio.wait([task], timeout=DEADLINE)
        assert task.done()
        task.exception()


def deal(made):
    """Pass a connection on; return the other end of it."""
    ours, theirs = socket.socketpair()
    with theirs:
        assert made.deal(theirs)
    return ours


def spread(made):
    return sorted(each.open for each in made.workers)


@pytest.fixture
def peers():
    with contextlib.ExitStack() as stack:
        yield stack


async def test_connections_are_dealt_evenly_and_given_up_for_one_that_is_back(tmp_path, peers):
    async with supervised(tmp_path) as (made, _):
        await until(lambda: made.ready)
        made.served = True
        for _ in range(6):
            peers.enter_context(deal(made))
        assert spread(made) == [3, 3]
        await until(lambda: all(each.state.taken == 3 for each in made.workers))
        victim, other = made.workers
        with capture_logs() as logs:
            victim.kill()
            await until(lambda: not victim.running)
            assert made.ready  # one of two is enough
            for _ in range(3):
                peers.enter_context(deal(made))
            assert other.open == 6
            await until(lambda: victim.state.ready)
        assert [each["event"] for each in logs if "worker" in each] == ["worker.ended"]
        assert logs[0]["status"] == 128 + 9
        made.even_out()
        await until(lambda: other.open == 3)
        for _ in range(3):
            peers.enter_context(deal(made))
        assert spread(made) == [3, 3]
        made.even_out()
        assert spread(made) == [3, 3]


async def test_a_worker_that_says_nothing_is_passed_nothing(tmp_path, peers):
    async with supervised(tmp_path) as (made, _):
        await until(lambda: made.ready)
        silent, other = made.workers
        silent._last_state_at -= 3600
        for _ in range(4):
            peers.enter_context(deal(made))
            silent._last_state_at -= 3600
        assert other.open == 4
        silent._last_state_at = time.monotonic() - 5
        assert not silent.responsive
        await until(lambda: silent.responsive)  # it says its state again and again


async def test_a_worker_that_hangs_is_killed_and_started_again(tmp_path):
    async with supervised(tmp_path) as (made, _):
        await until(lambda: made.ready)
        made.served = True
        hung = made.workers[0]
        assert hung._process is not None
        with capture_logs() as logs:
            os.kill(hung._process.pid, signal.SIGSTOP)

            def back():
                if hung.starts == 1:
                    hung._last_state_at -= 3600  # what it said before may still be read
                return hung.starts == 2 and hung.state.ready

            await until(back)
        assert [each["event"] for each in logs if "worker" in each] == [
            "worker.hung",
            "worker.ended",
        ]


async def test_a_worker_that_hangs_before_it_listens_is_killed_and_started_again(tmp_path):
    mark = tmp_path / "stuck-0"
    mark.touch()
    with capture_logs() as logs:
        async with supervised(tmp_path) as (made, _):
            hung, other = made.workers
            await until(lambda: other.state.ready and not mark.exists())
            made.served = True
            assert not made.ready  # it is on its way for the first time

            def back():
                if hung.starts == 1:
                    hung._last_state_at -= 3600
                return hung.starts == 2 and made.ready

            await until(back)
            assert other.starts == 1
    assert [each["event"] for each in logs if "worker" in each] == ["worker.hung", "worker.ended"]


async def test_nobody_takes_what_comes_while_none_listens(tmp_path):
    made = Supervisor(2, tmp_path, [], lambda: None)
    with socket.socket() as connection:
        assert not made.deal(connection)
    assert not made.ready


@pytest.mark.parametrize("turns", range(6))
async def test_those_that_are_stopped_while_they_start_end(tmp_path, turns):
    made = Supervisor(2, tmp_path, [sys.executable, "-c", PROGRAM], lambda: None)
    task = asyncio.create_task(made.run())
    for _ in range(turns):
        await asyncio.sleep(0)
    made.stop()
    try:
        await asyncio.wait_for(asyncio.shield(task), DEADLINE)
    finally:
        made.kill()


@pytest.mark.parametrize("how", ["stop", "kill", "cancel"])
async def test_one_that_has_just_ended_can_be_stopped(tmp_path, how):
    made = Supervisor(1, tmp_path, [sys.executable, "-c", ""], lambda: None)
    made.served = True  # so that it is started again and again
    task = asyncio.create_task(made.run())
    (worker,) = made.workers
    with capture_logs() as logs:
        while worker._process is None or worker._process.returncode is None:
            await asyncio.sleep(0)
        (task.cancel if how == "cancel" else getattr(made, how))()
        made.stop()
        await asyncio.wait([task], timeout=DEADLINE)
    assert task.cancelled() is (how == "cancel")
    assert task.done()
    assert "worker.not_started" not in [each["event"] for each in logs]


@pytest.mark.parametrize("broken", [(0, 1), (1,)])
async def test_if_none_can_start_the_status_is_said(tmp_path, broken):
    (tmp_path / "stuck-0").touch()  # it hangs unless it is broken
    async with supervised(tmp_path, *broken) as (made, task):
        with pytest.raises(ExceptionGroup) as raised:
            await asyncio.wait_for(asyncio.shield(task), DEADLINE)
        found = raised.value.exceptions
        assert {each.status for each in found if isinstance(each, WorkerEnded)} == {3}
        assert not any(each.running for each in made.workers)


async def test_one_that_cannot_start_keeps_the_others_from_nothing(tmp_path):
    made = Supervisor(2, tmp_path, [sys.executable, "-c", PROGRAM, "1"], lambda: None)
    made.served = True  # as after the other one has said that it listens
    task = asyncio.create_task(made.run())
    await until(lambda: made.workers[1].starts >= 2 and made.workers[0].state.ready)
    assert made.ready
    made.stop()
    await asyncio.wait_for(task, DEADLINE)
    assert not any(each.running for each in made.workers)


async def test_a_program_that_cannot_be_run_is_a_status_too(tmp_path):
    made = Supervisor(2, tmp_path, ["/nowhere"], lambda: None)
    with capture_logs() as logs, pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(made.run(), DEADLINE)
    found = raised.value.exceptions
    assert {each.status for each in found if isinstance(each, WorkerEnded)} == {126}
    assert "No such file" in logs[0]["error"]


async def test_a_worker_for_which_no_descriptor_is_left_has_that_status_too(tmp_path):
    made = Supervisor(2, tmp_path, ["/nowhere"], lambda: None)
    with no_descriptor_left(), capture_logs() as logs, pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(made.run(), DEADLINE)
    found = raised.value.exceptions
    assert {each.status for each in found if isinstance(each, WorkerEnded)} == {126}
    assert "Too many open files" in logs[0]["error"]
