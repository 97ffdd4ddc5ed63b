"""Clients, gateway, picker and model servers by IPv6: each request is served where it was sent."""

import asyncio
import json
import sys

import pytest

from e2e.corridor import CHAT, SERVER, START_SECONDS, chat
from e2e.from_nothing import up
from epp.gateway.processes import Process, spawn
from tests.loopbacks import loopbacks

REQUESTS = 12
"""All go to one of three by chance once in 177,147 runs."""
SPELLINGS = {
    "short": ("::1", "[::1]", "[::1]"),
    "long": ("::1", "[0:0:0:0:0:0:0:1]", "[::1]"),
    "mapped": ("127.0.0.1", "[::ffff:127.0.0.1]", "127.0.0.1"),
}
"""Where a server listens, its host in a URL, and in the name of its endpoint."""


async def test_what_is_picked_serves_however_its_address_is_written(tmp_path):
    if "[::1]" not in loopbacks():
        pytest.skip("NOT TESTED: a gateway with IPv6: this machine has no IPv6")

    async def start(name):
        where = ("--host", SPELLINGS[name][0], "--port", "0", "--name", name)
        argv = (sys.executable, "-m", "model_server.simulator", *where)
        servers.append(await spawn(name, argv, log_dir=tmp_path))
        return (await servers[-1].wait_ready_line(START_SECONDS))["port"]

    servers: list[Process] = []
    try:
        ports = dict(zip(SPELLINGS, await asyncio.gather(*map(start, SPELLINGS)), strict=True))
        urls = [f"http://{SPELLINGS[name][1]}:{port}" for name, port in ports.items()]
        targets = {f"{SPELLINGS[name][2]}:{port}": name for name, port in ports.items()}
        served = set()
        async with up(tmp_path, "--host=::1", *urls, "--debug-headers") as gateway:
            assert gateway.url.startswith("http://[::1]:")
            for number in range(REQUESTS):
                body = chat(f"question {number}")
                async with gateway.client.post(gateway.url + CHAT, json=body) as response:
                    assert response.status == 200, await response.text()
                    picked = json.loads(response.headers["x-warmpick-decision"])["endpoint"]
                    assert response.headers[SERVER] == targets[picked]
                    served.add(targets[picked])
        assert len(served) > 1
    finally:
        await asyncio.gather(*(each.stop(0) for each in servers))
