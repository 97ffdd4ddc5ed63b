"""Simulated model servers in this process, behind real sockets, and a client."""

import asyncio
import contextlib
import json

import aiohttp
from model_server.simulator.cli import start
from model_server.simulator.server import Server
from model_server.simulator.settings import Settings, Speed

COMPLETIONS = "/v1/completions"
IDS = {"model": "sim-model", "prompt": list(range(1000)), "max_tokens": 4}
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


async def ask(picker, client, body, path=COMPLETIONS, **headers):
    """Send a request where it is picked for; return the pick and the answer."""
    async with (
        picker.pick(body, headers, path=path) as pick,
        client.post(pick.url, data=pick.body, headers=pick.headers) as response,
    ):
        pick.answered(response.status, response.headers)
        answer = b"".join([pick.feed(each) async for each in response.content.iter_any()])
        pick.finished()
    assert response.status == 200
    return pick, {} if answer.startswith(b"data:") else json.loads(answer)
