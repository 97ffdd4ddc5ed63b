"""A simulator in this process behind a real socket, and a client for it."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
from model_server.simulator.cli import start
from model_server.simulator.server import Server
from model_server.simulator.settings import Settings, Speed
from prometheus_client.parser import text_string_to_metric_families

DEADLINE = 10
FAST = Speed(factor=1000)
LONG = "A conversation needs some length before its blocks can be found again. " * 8


def address(host, port):
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@asynccontextmanager
async def serving(**changes):
    """A running server and a client session with its address as the base."""
    server = Server(Settings(port=0, **{"speed": FAST, **changes}))
    engine = asyncio.create_task(server.engine.run())
    runner, host, port = await start(server)
    timeout = aiohttp.ClientTimeout(total=DEADLINE)
    async with aiohttp.ClientSession(address(host, port), timeout=timeout) as client:
        yield server, client
    await runner.cleanup()
    engine.cancel()


async def post(client, path, body, **headers):
    """Status, headers and JSON body of a POST."""
    async with client.post(path, json=body, headers=headers) as response:
        return response.status, response.headers, await response.json()


async def events(client, path, body):
    """The JSON bodies of a streamed answer's events, and whether it ended with [DONE]."""
    async with client.post(path, json=body | {"stream": True}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        text = await response.text()
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    done = data[-1] == "[DONE]"
    return [json.loads(item) for item in data[: len(data) - done]], done


async def samples(client):
    """All samples of /metrics: {(name, sorted labels): value}."""
    async with client.get("/metrics") as response:
        text = await response.text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def value(client, name, **labels):
    """The one sample of a family, with the labels every engine metric has."""
    key = tuple(sorted({"engine": "0", "model_name": "sim-model", **labels}.items()))
    return (await samples(client))[f"vllm:{name}", key]


async def until(condition):
    """Wait for an async condition."""
    async with asyncio.timeout(DEADLINE):
        while not await condition():
            await asyncio.sleep(0.005)


def chat(*texts, **options):
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    return {"model": "sim-model", "messages": messages, **options}
