"""What holds the event loop is seen, and told from a machine that stands still."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.adapters.telemetry import loop_delay
from epp.adapters.telemetry.loop_delay import IDLE_SECONDS, LoopDelay
from tests.adapters.ext_proc_peer import DEADLINE
from tests.tasks import until

SCHEDSTAT = Path("/proc/thread-self/schedstat")
LONG = 0.1
HOLD = LONG + IDLE_SECONDS + 0.1
"""Longer by the time that may have been left until the timer was due."""


@pytest.fixture
async def watched():
    """Each test starts it itself: what passes before a test begins would be a delay, too."""
    made = LoopDelay()
    yield made
    made.stop()


def above(histogram, bound):
    """How many values were above a bound."""
    return sum(histogram.counts[histogram.bounds.index(bound) + 1 :])


def compute():
    end = time.process_time() + HOLD
    while time.process_time() < end:
        pass


async def sampled(watched):
    """Wait for the next sample."""
    seen = sum(watched.delay.counts)
    await until(lambda: sum(watched.delay.counts) > seen)


async def test_work_in_the_loop_holds_it(watched):
    watched.start()
    compute()
    await sampled(watched)
    assert (above(watched.delay, LONG), above(watched.held, LONG)) == (1, 1)


async def test_work_that_keeps_the_interpreter_counts_wherever_it_is_done(watched):
    # A regular expression runs without ever letting another thread in.
    import re  # noqa: PLC0415

    watched.start()
    text, end = "a" * 24, time.process_time() + HOLD

    def work():
        while time.process_time() < end:
            re.match("(a+)+b", text)

    await asyncio.to_thread(work)
    await sampled(watched)
    assert above(watched.held, LONG) >= 1


async def test_a_process_that_stands_still_is_late_and_holds_nothing(watched):
    watched.start()
    time.sleep(HOLD)  # the loop's thread itself stands still, as on a machine that is stopped
    await sampled(watched)
    assert (above(watched.delay, LONG), above(watched.held, LONG)) == (1, 0)


async def test_a_loop_that_stood_still_for_long_is_logged_once_a_minute(watched, monkeypatch):
    monkeypatch.setattr(loop_delay, "_LOGGED_SECONDS", LONG)
    watched.start()
    with capture_logs() as logs:
        for _ in range(2):
            time.sleep(HOLD)  # as a plug-in that waits
            await sampled(watched)
    (line,) = logs
    assert (line["event"], line["seconds"] > LONG) == ("event_loop.late", True)
    assert "a plug-in waits for something, or the process was stopped" in line["cause"]


@pytest.fixture
def crowded():
    """The calling thread shares one core with others that never stop."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # which children inherit
    argv = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(argv) for _ in range(15)]
    yield
    os.sched_setaffinity(0, cores)
    for each in busy:
        each.kill()
        each.wait()


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="the kernel does not say")
@pytest.mark.usefixtures("crowded")
async def test_a_wait_for_a_core_holds_nothing(watched):
    watched.start()
    async with asyncio.timeout(DEADLINE):
        while watched.delay.total < LONG / 2:
            await asyncio.sleep(0)
    assert watched.held.total < watched.delay.total / 2


async def test_short_work_holds_nothing(watched):
    watched.start()
    for _ in range(100):
        await asyncio.sleep(0)
    await sampled(watched)
    assert above(watched.held, LONG) == 0


async def test_the_page_has_both(watched):
    watched.start()
    await sampled(watched)
    page = "".join(block.text(openmetrics=False) for block in watched.collect())
    for name, histogram in (("delay", watched.delay), ("held", watched.held)):
        short = sum(histogram.counts) - above(histogram, LONG)
        assert f'warmpick_event_loop_{name}_seconds_bucket{{le="0.1"}} {short}\n' in page


async def test_after_the_stop_nothing_is_sampled(watched):
    watched.start()
    await sampled(watched)
    watched.stop()
    seen = sum(watched.delay.counts)
    await asyncio.sleep(IDLE_SECONDS * 2)
    assert sum(watched.delay.counts) == seen
