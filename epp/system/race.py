"""Several awaitables at once, of which the first to end decides."""

import asyncio
from collections.abc import Awaitable


async def race(*work: Awaitable[object]) -> None:
    """Wait until one has ended, and raise what it raised; the others are cancelled, and end."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
