"""The servers of the demonstrations: two real vLLMs on the CPU behind Envoy and the picker."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec

from epp.app.observing.fleet_view import EndpointsPage
from epp.gateway.processes import Process, ProcessDied, free_port, spawn

MODEL = "small"
BLOCK = 32
BLOCKS = 1024
CONTEXT = 8192
BATCH = 2048
BUILD_SECONDS = 120.0
START_SECONDS = 300.0
UP_SECONDS = 30.0
IDLE_SECONDS, POLL_SECONDS = 60.0, 0.05
GRACE_SECONDS = 20.0
_SETTINGS = {
    "--port": 0,
    "--served-model-name": MODEL,
    "--block-size": BLOCK,
    "--num-gpu-blocks": BLOCKS,
    "--max-model-len": CONTEXT,
    "--max-num-batched-tokens": BATCH,
}
_FLOAT = ("--dtype", "float32")
"""Faster than bfloat16 on processors without AVX-512, and rounds the same way more often."""


class Stand(msgspec.Struct, frozen=True):
    """Base URLs of one server alone, of the gateway in front of both, and of the picker's pages.

    `up` is the gateway and the picker.
    """

    alone: str
    gateway: str
    pages: str
    up: Process

    def url(self, servers: int) -> str:
        """The URL for this many servers."""
        return self.alone if servers == 1 else self.gateway

    async def idle(self, session: aiohttp.ClientSession) -> None:
        """Return once all servers have reported to the picker that they are idle.

        Otherwise it sends less to a server whose last report still shows the previous setting's
        load. Raises `ProcessDied`.
        """
        failure = "did not hear that its servers are idle"
        await self.up.before_exit(self._heard_idle(session), failure, IDLE_SECONDS)

    async def _heard_idle(self, session: aiohttp.ClientSession) -> None:
        while True:
            async with session.get(f"{self.pages}/debug/endpoints") as response:
                page = msgspec.json.decode(await response.read(), type=EndpointsPage)
            if not any(each.waiting or each.running for each in page.endpoints):
                return
            await asyncio.sleep(POLL_SECONDS)


async def build(folder: Path, logs: Path) -> None:
    """Build the model if it does not exist yet. Raises `ProcessDied`."""
    argv = (sys.executable, "-m", "model_server.tiny_model", str(folder), "--size", MODEL)
    builder = await spawn("build", argv, log_dir=logs)
    if await builder.wait_exit(BUILD_SECONDS) != 0:
        raise ProcessDied(builder.log_path.read_text(encoding="utf-8"))


@contextlib.asynccontextmanager
async def standing(folder: Path, logs: Path, *, caching: bool) -> AsyncIterator[Stand]:
    """Start everything; it is stopped on the way out. Raises `ProcessDied`."""
    servers: list[Process] = []

    async def stop() -> None:
        await asyncio.gather(*(server.stop(GRACE_SECONDS) for server in servers))

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(stop)
        for name in ("a", "b"):
            server = await spawn(f"vllm-{name}", _launch(folder, caching), log_dir=logs)
            servers.append(server)
        lines = [await server.wait_ready_line(START_SECONDS) for server in servers]
        urls = [f"http://127.0.0.1:{line['port']}" for line in lines]
        port, pages = free_port(), free_port()
        ports = (f"--port={port}", f"--metrics-port={pages}")
        argv = (sys.executable, "-m", "epp", "up", *urls, *ports, "--debug-headers")
        gateway = await spawn("up", argv, log_dir=logs)
        stack.push_async_callback(gateway.stop)
        await gateway.wait_http(f"http://127.0.0.1:{port}/v1/models", UP_SECONDS)
        gateway_url, pages_url = (f"http://127.0.0.1:{number}" for number in (port, pages))
        yield Stand(urls[0], gateway_url, pages_url, gateway)


def _launch(folder: Path, caching: bool) -> tuple[str, ...]:  # noqa: FBT001 - one of two kinds
    flags = (text for name, value in _SETTINGS.items() for text in (name, str(value)))
    switch = () if caching else ("--no-enable-prefix-caching",)
    launch = (sys.executable, "-m", "model_server.launch", str(folder), *flags)
    return (*launch, "--", *_FLOAT, *switch)
