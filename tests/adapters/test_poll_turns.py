"""How many polls begin in one turn of the loop, and what is left of those that are over."""

import asyncio
import gc
import time

import uvloop

from epp.adapters.scrape.page_source import PageSource
from epp.adapters.scrape.poll_turns import PollTurns
from epp.adapters.scrape.scraper import Scraper
from tests.adapters.scraped_pods import polls_of
from tests.strategies import endpoint


async def test_so_many_polls_begin_in_a_turn_and_the_others_in_later_ones_in_order():
    turns = PollTurns(at_once=3)
    begun: list[tuple[int, int]] = []
    loop = asyncio.get_running_loop()
    turn = 0

    def count():
        nonlocal turn
        turn += 1
        if len(begun) < 20:
            loop.call_soon(count)

    async def poll(number):
        if (place := turns.take()) is not None:
            await place
        begun.append((number, turn))

    loop.call_soon(count)
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(poll(number))
    assert [number for number, _ in begun] == list(range(20))
    by_turn = [at for _, at in begun]
    assert max(map(by_turn.count, by_turn)) <= 3


async def test_who_leaves_while_waiting_takes_no_turn_of_others():
    turns = PollTurns(at_once=1)
    first, leaves, stays, last = (turns.take() for _ in range(4))
    assert first is None
    assert leaves is not None
    assert stays is not None
    assert last is not None
    leaves.cancel()
    await asyncio.wait_for(stays, 10)
    await asyncio.wait_for(last, 10)


def test_an_endpoint_that_is_gone_leaves_no_cycle_for_the_collector():
    """Its memory is back at once: where many are gone the collector may come a minute later."""

    async def polled_and_gone():
        before = sum(type(each).__name__ == "_Server" for each in gc.get_objects())
        scraper = Scraper(lambda _: None, time.monotonic, PageSource())
        running = asyncio.create_task(polls_of(scraper))
        await asyncio.sleep(0)
        gone = [endpoint(f"e{number}", f"127.9.0.{number}", 9) for number in range(1, 9)]
        for each in gone:
            scraper.watch(each)
        tasks = [each.task for each in scraper._servers.values() if each.task is not None]
        async with asyncio.timeout(10):
            while scraper.errors < 2 * len(gone):
                for each in gone:
                    scraper.poll_now(each.id)
                await asyncio.sleep(0)
        for each in gone:
            scraper.unwatch(each.id)
        await asyncio.wait(tasks)
        del tasks
        await asyncio.sleep(0)
        left = sum(type(each).__name__ == "_Server" for each in gc.get_objects())
        running.cancel()
        return left - before

    gc.disable()
    try:
        assert uvloop.run(polled_and_gone()) == 0
    finally:
        gc.enable()
