"""The link between a process and its workers, and the port that it deals connections from."""

import asyncio
import contextlib
import socket

import pytest

from epp.adapters.workers.link import ParentLink, WorkerLink, WorkerStart, WorkerState
from epp.adapters.workers.port import SharedPort

HERE = "127.0.0.1"
DEADLINE = 10
START = WorkerStart(number=1, count=2, folder="/run/x", secret=b"\x00secret\xff")


async def until(condition):
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.002)


class Pair:
    """Both sides of a link in one process, and what each heard."""

    def __init__(self):
        self.states: list[WorkerState | None] = []
        self.taken: list[socket.socket] = []
        self.shed: list[int] = []
        self.gone: list[bool] = []
        self.parent = ParentLink(START, self.states.append)
        self.worker = WorkerLink(self.parent.theirs.dup())
        self.parent.started()

    def open(self):
        self.worker.open(self.taken.append, self.shed.append, lambda: self.gone.append(True))


@contextlib.asynccontextmanager
async def paired():
    pair = Pair()
    try:
        yield pair
    finally:
        pair.parent.close()
        for each in pair.taken:
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
            pair.taken[0].send(b"here")
            assert ours.recv(9) == b"here"
        assert pair.shed == [3]


async def test_what_a_worker_says_arrives_and_so_does_its_end():
    async with paired() as pair:
        said = [WorkerState(), WorkerState(listening=True, ready=True, taken=7, open=5)]
        for each in said:
            pair.worker.say(each)
        await until(lambda: len(pair.states) == len(said))
        pair.worker._socket.close()
        await until(lambda: len(pair.states) > len(said))
        assert pair.states == [*said, None]
        with socket.socket() as late:
            assert not pair.parent.pass_on(late)


async def test_a_worker_hears_that_the_process_is_gone():
    async with paired() as pair:
        pair.open()
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


@contextlib.asynccontextmanager
async def port(deal):
    shared = SharedPort(HERE, 0, deal)
    try:
        yield shared
    finally:
        shared.close()


async def test_a_port_refuses_until_it_is_opened_and_then_deals_all():
    dealt = []

    def deal(connection):
        dealt.append(connection.getpeername())
        return True

    async with port(deal) as shared:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HERE, shared.port)
        shared.open()
        shared.open()
        peers = [await asyncio.open_connection(HERE, shared.port) for _ in range(100)]
        await until(lambda: len(dealt) == len(peers))
        assert set(dealt) == {writer.get_extra_info("sockname") for _, writer in peers}
        for _, writer in peers:
            writer.close()


async def test_a_connection_that_nobody_takes_is_closed():
    async with port(lambda _: False) as shared:
        shared.open()
        reader, writer = await asyncio.open_connection(HERE, shared.port)
        async with asyncio.timeout(DEADLINE):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_a_port_that_is_taken_is_said():
    async with port(lambda _: True) as shared:
        shared.open()
        with pytest.raises(OSError, match="in use"):
            SharedPort(HERE, shared.port, lambda _: True)
