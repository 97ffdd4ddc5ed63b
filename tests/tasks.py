"""Jobs that run beside a test, and what waits for them."""

import asyncio
import contextlib

WITHIN = 10
PATIENCE = 30


async def until(condition):
    """Wait for a condition of which nothing tells."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


class Changed:
    """Lets tests wait for a condition, which is checked after every call of this."""

    def __init__(self):
        self._changed = asyncio.Event()

    def __call__(self, *_):
        self._changed.set()

    async def until(self, condition, within=WITHIN):
        async with asyncio.timeout(within):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def running(job):
    """Run a coroutine as a task, and cancel it in the end; what it raised before is raised."""
    task = asyncio.create_task(job)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
