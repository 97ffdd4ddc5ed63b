"""The link between a process and its workers."""

import asyncio
import contextlib
import socket

import pytest

from epp.adapters.workers.link import ParentLink, WorkerLink, WorkerStart, WorkerState
from tests.processes import no_descriptor_left
from tests.tasks import until

START = WorkerStart(number=1, count=2, folder="/run/x", secret=b"\x00secret\xff")


class Pair:
    """Both sides of a link in one process, and what each heard."""

    def __init__(self):
        self.states: list[WorkerState | None] = []
        self.taken: list[socket.socket | None] = []
        self.shed: list[int] = []
        self.gone: list[bool] = []
        self.parent = ParentLink(START, self.states.append)
        self.worker = WorkerLink(self.parent.theirs.dup())

    def open(self):
        self.worker.open(self.taken.append, self.shed.append, lambda: self.gone.append(True))


@contextlib.asynccontextmanager
async def paired(started=True):
    pair = Pair()
    if started:
        pair.parent.started()
    try:
        yield pair
    finally:
        pair.parent.close()
        for each in filter(None, pair.taken):
            each.close()
        pair.worker._socket.close()


async def test_a_worker_knows_who_it_is():
    async with paired() as pair:
        assert pair.worker.start == START
        assert str(pair.worker.start.page_socket) == "/run/x/pages-1"


async def test_a_connection_is_passed_on_and_goes_on_in_the_worker():
    async with paired() as pair:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert pair.parent.pass_on(theirs)
            pair.parent.shed(3)
            pair.open()
            await until(lambda: pair.taken and pair.shed)
            theirs.close()
            assert pair.taken[0] is not None
            pair.taken[0].send(b"here")
            assert ours.recv(9) == b"here"
        assert pair.shed == [3]


async def test_a_connection_for_which_no_descriptor_is_left_is_closed_and_counts():
    """The process would otherwise count it as open, and pass on fewer."""
    async with paired() as pair:
        pair.open()
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                assert pair.parent.pass_on(theirs)
            with no_descriptor_left():
                await until(lambda: pair.taken == [None])
            assert ours.recv(1) == b""


@pytest.mark.parametrize("unread", [False, True])  # with what it has not read, the link is reset
async def test_what_a_worker_says_arrives_and_so_does_its_end(unread):
    async with paired() as pair:
        said = [WorkerState(), WorkerState(listening=True, ready=True, taken=7, open=5)]
        for each in said:
            pair.worker.send_state(each)
        await until(lambda: len(pair.states) == len(said))
        if unread:
            pair.parent.shed(1)
        pair.worker._socket.close()
        await until(lambda: len(pair.states) > len(said))
        assert pair.states == [*said, None]
        with socket.socket() as late:
            assert not pair.parent.pass_on(late)


async def test_what_a_worker_says_waits_until_its_start_is_over():
    async with paired(started=False) as pair:
        pair.worker.send_state(WorkerState(listening=True))
        for _ in range(3):  # in each, what has come would be read
            await asyncio.sleep(0)
        assert pair.states == []
        pair.parent.started()
        await until(lambda: pair.states == [WorkerState(listening=True)])


@pytest.mark.parametrize("unread", [False, True])
async def test_a_worker_notices_that_the_process_is_gone(unread):
    async with paired() as pair:
        pair.open()
        if unread:
            pair.worker.send_state(WorkerState())
        pair.parent.close()
        await until(lambda: pair.gone)


async def test_a_worker_that_reads_nothing_is_passed_no_more():
    async with paired() as pair:
        with socket.socket() as connection:
            passed = 0
            while pair.parent.pass_on(connection):
                passed += 1
                assert passed < 100_000
        pair.open()
        await until(lambda: len(pair.taken) == passed)
