"""What is asked: two real vLLMs on the CPU, with Envoy and the picker in front of them."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from epp.gateway.processes import Process, ProcessDied, free_port, spawn

MODEL = "small"
BLOCK = 32
BLOCKS = 1024
CONTEXT = 8192
BATCH = 2048
BUILD_SECONDS = 120.0
START_SECONDS = 300.0
UP_SECONDS = 30.0
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
    """Base URLs: of one server alone, and of the gateway in front of both."""

    alone: str
    gateway: str

    def url(self, servers: int) -> str:
        """Where to ask so many servers."""
        return self.alone if servers == 1 else self.gateway


async def build(folder: Path, logs: Path) -> None:
    """Build the model where it is not there yet. Raises `ProcessDied`."""
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
        port = free_port()
        argv = (sys.executable, "-m", "epp", "up", *urls, f"--port={port}", "--debug-headers")
        gateway = await spawn("up", argv, log_dir=logs)
        stack.push_async_callback(gateway.stop)
        await gateway.wait_http(f"http://127.0.0.1:{port}/v1/models", UP_SECONDS)
        yield Stand(urls[0], f"http://127.0.0.1:{port}")


def _launch(folder: Path, caching: bool) -> tuple[str, ...]:  # noqa: FBT001 - one of two kinds
    flags = (text for name, value in _SETTINGS.items() for text in (name, str(value)))
    switch = () if caching else ("--no-enable-prefix-caching",)
    launch = (sys.executable, "-m", "model_server.launch", str(folder), *flags)
    return (*launch, "--", *_FLOAT, *switch)
