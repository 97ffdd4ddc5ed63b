"""Simulated model servers in this process, behind real sockets, and a client."""

import asyncio
import contextlib

import aiohttp
from model_server.simulator.cli import start
from model_server.simulator.server import Server
from model_server.simulator.settings import Settings, Speed

FAST = Speed(factor=1000)


@contextlib.asynccontextmanager
async def simulators(count, **settings):
    """Give the `ip:port` of each, and a client session."""
    async with contextlib.AsyncExitStack() as stack:
        targets = []
        for number in range(count):
            named = {"port": 0, "name": f"server-{number}", "speed": FAST, **settings}
            server = Server(Settings(**named))
            engine = asyncio.create_task(server.engine.run())
            stack.callback(engine.cancel)
            runner, host, port = await start(server)
            stack.push_async_callback(runner.cleanup)
            targets.append(f"{host}:{port}")
        timeout = aiohttp.ClientTimeout(total=20)
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        yield targets, client
