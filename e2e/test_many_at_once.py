"""As many requests at once as a fleet has, through Envoy as docs/gateway.md configures it."""

import asyncio
import collections
import contextlib
import re
from pathlib import Path

import pytest
import yaml

from e2e.corridor import CHAT, Plan, chat, quiet_port
from e2e.echo import HELD, PIECES, event
from e2e.from_nothing import up
from epp.gateway.envoy import envoy_binary
from epp.gateway.processes import spawn

PAGE = Path(__file__).parents[1] / "docs" / "gateway.md"
AT_ONCE = 1_500
"""Envoy's own limit is 1,024 requests at once for each cluster."""
SECONDS = 60


def documented(picker, clients, admin):
    """Give the complete configuration of the page, on these ports of loopback."""
    text = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    text = text.replace("0.0.0.0", "127.0.0.1")
    text = text.replace("port_value: 8081", f"port_value: {clients}")
    text = text.replace("port_value: 9002", f"port_value: {picker}")
    config = yaml.safe_load(text)
    where = {"socket_address": {"address": "127.0.0.1", "port_value": admin}}
    return {**config, "admin": {"address": where}}


@contextlib.asynccontextmanager
async def documented_envoy(picker, folder):
    """Run Envoy as the page has it; give its URL."""
    clients, admin = quiet_port(), quiet_port()
    path = folder / "documented.yaml"
    path.write_text(yaml.safe_dump(documented(picker, clients, admin)))
    argv = [str(envoy_binary()), "--config-path", str(path), "--concurrency", "1"]
    envoy = await spawn("documented", [*argv, "--disable-hot-restart"], log_dir=folder)
    try:
        await envoy.wait_http(f"http://127.0.0.1:{admin}/ready", SECONDS)
        yield f"http://127.0.0.1:{clients}"
    finally:
        await envoy.stop(0)


async def nothing():
    """Do nothing, where a test wants nothing done meanwhile."""


async def all_at_once(client, url, echo, meanwhile=nothing):
    """Ask for so many streams that all have begun before any ends; check that each is whole.

    `meanwhile` is done while all go on.
    """
    headers = {PIECES: "3", HELD: "1"}
    statuses: collections.Counter[int] = collections.Counter()
    refusals: set[str] = set()
    begun = 0
    everyone = asyncio.Event()
    echo.release.clear()

    async def ask(number):
        nonlocal begun
        body = chat(f"question {number}", stream=True)
        async with client.post(url + CHAT, json=body, headers=headers) as response:
            begun += 1
            if begun == AT_ONCE:
                everyone.set()
            statuses[response.status] += 1
            if response.status == 200:
                assert await response.read() == b"".join(map(event, range(3)))
            else:
                refusals.add(await response.text())

    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        for number in range(AT_ONCE):
            tasks.create_task(ask(number))
        await everyone.wait()  # every answer has begun, and none has ended
        await meanwhile()
        echo.release.set()
    assert statuses == {200: AT_ONCE}, refusals


@pytest.mark.parametrize("transport", ["native", "grpcio"])
async def test_1500_streamed_answers_at_once(echo, start, transport):
    flags = ("--transport", transport)
    plan = Plan(others=(echo.target,), routing="original_dst", picker_flags=flags)
    async with (
        start(plan) as gateway,
        documented_envoy(gateway.grpc_port, gateway.directory) as url,
    ):
        await all_at_once(gateway.client, url, echo)


async def test_1500_streamed_answers_at_once_from_nothing(echo, tmp_path):
    async with up(tmp_path, f"http://{echo.target}") as gateway:
        await all_at_once(gateway.client, gateway.url, echo)
