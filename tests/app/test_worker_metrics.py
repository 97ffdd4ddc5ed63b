"""What workers counted, whenever they end: asked over a socket as workers' pages are."""

import asyncio
import contextlib
from asyncio.subprocess import Process
from typing import cast

import pytest
from aiohttp import web

from epp.adapters.workers.link import WorkerStart
from epp.app.workers import pages
from epp.app.workers.pages import MergedPages
from epp.app.workers.supervisor import WorkerProcess


class Worker:
    """A worker's process as the one that asks for its page sees it; it has counted `count`."""

    def __init__(self, folder):
        self.process = WorkerProcess(
            WorkerStart(number=0, count=1, folder=str(folder), secret=b""), [], lambda: None
        )
        self.pages = MergedPages([self.process])
        self.count: int | None = 0
        self.answers = True
        self.ends_after_answer = self.waits = False
        self.ended, self.asked, self.arrives = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.arrives.set()

    def start(self):
        self.process._process = cast("Process", object())
        self.process.starts += 1
        self.count = 0

    def end(self):
        self.process._process = None

    async def answer(self, _request):
        if self.ends_after_answer:
            self.ends_after_answer = False
            self.end()
            self.ended.set()
            await self.arrives.wait()
        if not self.answers:
            return web.Response(status=503)
        count = self.count
        if self.waits:
            self.waits = False
            self.asked.set()
            await self.arrives.wait()
        sample = "" if count is None else f"x_total {count}\n"
        return web.Response(text=f"# HELP x_total x\n# TYPE x_total counter\n{sample}")

    async def counted(self):
        page = "".join([piece async for piece in self.pages.page()])
        values = [line.split()[1] for line in page.splitlines() if line.startswith("x_total")]
        return int(values[0]) if values else None


@contextlib.asynccontextmanager
async def serving(folder):
    worker = Worker(folder)
    app = web.Application()
    app.router.add_get("/metrics", worker.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(worker.process.pages)).start()
    worker.start()
    try:
        yield worker
    finally:
        await worker.pages.close()
        await runner.cleanup()


async def test_a_worker_that_ends_after_it_answered_counts_once(tmp_path):
    async with serving(tmp_path) as worker:
        worker.count = 1000
        assert await worker.counted() == 1000
        worker.count, worker.ends_after_answer = 1010, True
        assert await worker.counted() == 1010
        assert await worker.counted() == 1010  # nobody runs
        worker.start()
        assert await worker.counted() == 1010
        worker.count = 5
        assert await worker.counted() == 1015


async def test_a_worker_that_is_started_again_before_the_next_scrape_counts_once(tmp_path):
    async with serving(tmp_path) as worker:
        worker.count, worker.ends_after_answer = 1010, True
        assert await worker.counted() == 1010
        worker.start()
        worker.count = 5
        assert await worker.counted() == 1015


async def test_a_worker_that_ends_without_an_answer_counts_as_it_last_did(tmp_path):
    async with serving(tmp_path) as worker:
        worker.count = 1000
        assert await worker.counted() == 1000
        worker.answers = False
        assert await worker.counted() == 1000
        worker.ends_after_answer = True
        assert await worker.counted() == 1000
        worker.start()
        worker.answers, worker.count = True, 5
        assert await worker.counted() == 1005


@pytest.mark.parametrize("named", [b"1", b"-0", b"x", b"", b"9" * 5000])
async def test_a_profile_of_no_worker_is_refused(tmp_path, named):
    async with serving(tmp_path) as worker:
        profile = worker.pages.profiles[b"/debug/pprof/goroutine"]
        assert await profile(b"worker=" + named) == (400, b"worker: a number from 0 to 0\n")


async def test_one_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "_SECONDS", 1e6)
    monkeypatch.setattr(pages, "_SILENT_SECONDS", 0.05)
    async with serving(tmp_path) as worker, asyncio.timeout(30):
        worker.count, worker.waits = 1000, True
        worker.arrives.clear()
        assert await worker.counted() is None
        assert worker.asked.is_set()
        worker.arrives.set()
        assert await worker.counted() == 1000
        worker.answers = False
        assert await worker.counted() == 1000
        worker.count, worker.answers = 1010, True
        assert await worker.counted() == 1010


async def test_an_answer_that_is_looked_at_after_its_worker_was_counted_is_left_out(tmp_path):
    """Of two scrapes at once, the second finds that the worker has ended."""
    async with serving(tmp_path) as worker:
        worker.count = 1000
        assert await worker.counted() == 1000
        worker.count, worker.ends_after_answer = 1010, True
        worker.arrives.clear()
        first = asyncio.create_task(worker.counted())
        await worker.ended.wait()
        assert await worker.counted() == 1000
        worker.arrives.set()
        assert await first == 1000
        assert await worker.counted() == 1000


async def test_a_count_that_a_worker_forgets_is_gone_or_does_not_go_back(tmp_path):
    async with serving(tmp_path) as worker:
        worker.count = 1000
        assert await worker.counted() == 1000
        worker.count = 5  # forgotten and counted anew between two scrapes
        assert await worker.counted() == 1005
        worker.count = None
        assert await worker.counted() is None
        worker.count = 7
        assert await worker.counted() == 7


async def test_an_answer_that_comes_after_a_later_one_is_nothing_forgotten(tmp_path):
    async with serving(tmp_path) as worker:
        worker.count = 1000
        assert await worker.counted() == 1000
        worker.count, worker.waits = 1010, True
        worker.arrives.clear()
        first = asyncio.create_task(worker.counted())
        await worker.asked.wait()
        worker.count = 1020
        assert await worker.counted() == 1020
        worker.arrives.set()
        assert await first == 1020
        assert await worker.counted() == 1020


async def test_of_two_scrapes_at_once_none_counts_twice_what_is_forgotten(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with serving(tmp_path / "a") as worker, serving(tmp_path / "b") as slow:
        worker.pages = MergedPages([worker.process, slow.process])
        worker.count, slow.count, slow.waits = 1000, 1, True
        slow.arrives.clear()
        first = asyncio.create_task(worker.counted())
        await slow.asked.wait()
        assert await worker.counted() == 1001
        worker.count = 5
        assert await worker.counted() == 1006
        slow.arrives.set()
        assert await first == 1006
        await worker.pages.close()
