"""Jobs that run beside a test."""

import asyncio
import contextlib


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
