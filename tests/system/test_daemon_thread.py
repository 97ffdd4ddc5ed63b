import asyncio
import subprocess
import sys
import threading

import pytest

from epp.system.daemon_thread import in_daemon_thread


async def test_it_returns_and_raises_what_the_function_does():
    assert await in_daemon_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(divmod, 7, 0)


async def test_a_call_that_is_given_up_is_forgotten():
    began, ended, release = threading.Event(), threading.Event(), threading.Event()

    def wait():
        began.set()
        release.wait()
        ended.set()

    call = asyncio.create_task(in_daemon_thread(wait))
    await in_daemon_thread(began.wait)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    release.set()
    await in_daemon_thread(ended.wait)


ENDING = """
import asyncio, os, sys, threading
from epp.system.daemon_thread import in_daemon_thread

async def main():
    for_ever = threading.Event()
    calls = [asyncio.create_task(in_daemon_thread(for_ever.wait)) for _ in range(3)]
    await asyncio.wait(calls, timeout=0.1)

asyncio.run(main())
print("ended")
"""


def test_calls_that_never_return_hold_no_end():
    done = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")
