"""A model server of a test's own, in this process."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

BACKLOG = 4096
"""Connections that wait to be accepted: a thousand may come at once."""

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(
    answer: Answer, *, most_bytes: int = 1 << 20, at: tuple[str, int] = ("127.0.0.1", 0)
) -> AsyncIterator[str]:
    """Answer every request that comes to a socket of its own; give its `ip:port`."""
    app = web.Application(client_max_size=most_bytes)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, *at, backlog=BACKLOG).start()
    try:
        yield f"{at[0]}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
