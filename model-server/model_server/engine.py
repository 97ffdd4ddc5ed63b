"""The engine's processes: starts them, waits until they are healthy, and stops them.

This module knows processes and `/health`; vLLM's arguments are in `model_server.flags`.
"""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import msgspec

from model_server.settings import Device, Settings

VLLM_COMMAND = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
HOW_TO_GET_VLLM = (
    "vLLM is not installed in this Python: `make vllm` installs its CPU build (it needs torch"
    " from PyTorch's CPU wheel index and says how to get it)"
)
PROBE_SECONDS = 0.2
LINGER_SECONDS = 1.0
"""How long processes without work of their own have to notice that the first one is gone."""


def is_installed() -> bool:
    """Whether vLLM can be started with this Python; imports nothing."""
    return find_spec("vllm") is not None


def installed_device() -> Device:
    """Read the device of the installed vLLM from the local tag of its version."""
    try:
        return "cpu" if "cpu" in version("vllm").partition("+")[2] else "gpu"
    except PackageNotFoundError:
        return "gpu"


def reserve_port(host: str, port: int) -> socket.socket:
    """Bind `port` (0: any free one) so that no other process gets it while vLLM loads.

    vLLM binds it again (both sides set SO_REUSEADDR, and this one never listens). Close the socket
    once vLLM listens or is gone. Raises `OSError` if the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reserved = socket.socket(family, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reserved.bind((host, port))
    except OSError:
        reserved.close()
        raise
    return reserved


def address_of(host: str, port: int) -> str:
    """`host:port` as a URL has it; a server on every interface is reached on loopback."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not bound
    return f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"


def url_of(settings: Settings) -> str:
    """The URL at which this machine reaches the engine."""
    address = address_of(settings.host, settings.port)
    return f"https://{address}" if settings.tls else f"http://{address}"


class Died(Exception):
    """The engine ended by itself; `status` is its exit status (negative: the signal)."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the engine ended with status {status}")
        self.status = status


class Engine(msgspec.Struct, frozen=True):
    """A running engine: its first process leads a process group of its own.

    The group dies with the process that started it.
    """

    process: Process

    @classmethod
    async def start(
        cls, command: Sequence[str], variables: dict[str, str], log: Path | None
    ) -> "Engine":
        """Run `command`; its output goes to the end of `log`, or to this process's stderr."""
        output = log.open("ab") if log else None
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "model_server.leash", str(os.getpid())),
                *command,
                env=os.environ | variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output or sys.stderr,
                stderr=output or sys.stderr,
                start_new_session=True,
            )
        finally:
            if output:
                output.close()
        return cls(process)

    async def ended(self) -> None:
        """Wait for the first process to end; it always raises Died."""
        raise Died(await self.process.wait())

    async def healthy(self, url: str) -> None:
        """Wait until `GET /health` answers 200. Raises `Died` if the engine ends first."""
        death = asyncio.ensure_future(self.ended())
        health = asyncio.ensure_future(_answers(f"{url}/health"))
        try:
            await asyncio.wait({death, health}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                death.result()
            health.result()
        finally:
            for task in (death, health):
                task.cancel()
            await asyncio.gather(death, health, return_exceptions=True)

    async def stop(self, seconds: float) -> bool:
        """End every process of the group; return False if the first one had to be killed.

        Only the first process gets SIGTERM: it drains, then stops the others, and has `seconds` for
        both. Returns within `seconds` + LINGER_SECONDS and the moment that SIGKILL takes.
        """
        in_time = True
        if self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), seconds)
                await asyncio.wait_for(self._group_is_gone(), LINGER_SECONDS)
            except TimeoutError:
                in_time = self.process.returncode is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        return in_time

    async def _group_is_gone(self) -> None:
        with suppress(ProcessLookupError):
            while True:
                os.killpg(self.process.pid, 0)
                await asyncio.sleep(PROBE_SECONDS / 4)


async def _answers(url: str) -> None:
    timeout = aiohttp.ClientTimeout(total=5)
    # The certificate is for the name that clients use, which this machine's own address is not.
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        while True:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass  # not listening yet
            await asyncio.sleep(PROBE_SECONDS)
