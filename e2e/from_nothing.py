"""`epp up` as a process: what it says, where it listens, what runs beneath it."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from e2e.corridor import DEADLINE, START_SECONDS, until
from epp.gateway.processes import Process, ProcessDied, spawn

STOP_SECONDS = 5
STARTED = "Ctrl-C drains and stops."


class Up:
    """A running `epp up`."""

    def __init__(self, process: Process, client: aiohttp.ClientSession) -> None:
        self.process = process
        self.client = client

    @property
    def said(self) -> str:
        """Everything that it has printed."""
        return self.process.log_path.read_text()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return str(re.findall(r"^(https?://\S+) in front of", self.said, re.MULTILINE)[0])

    async def says(self, text: str) -> None:
        """Wait until it has printed a text. Raises `ProcessDied` where it ends before."""

        async def found() -> bool:
            if text in self.said:
                return True
            if not self.process.alive():
                await self.process.watch()
            return False

        await until(found)

    async def metric(self, name: str) -> float:
        """Add up the samples of a name on the metrics page."""
        (page,) = re.findall(r"^Metrics: (\S+)", self.said, re.MULTILINE)
        async with self.client.get(page) as response:
            families = text_string_to_metric_families(await response.text())
        return sum(
            each.value for family in families for each in family.samples if each.name == name
        )

    def child(self, word: str) -> psutil.Process:
        """Give the child whose command line has a word."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(each for each in children if word in " ".join(each.cmdline()))

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send what Ctrl-C in a terminal does."""
        os.kill(self.process.pid, number)

    async def exits(self) -> int:
        """Wait for the end; give the exit status."""
        return await self.process.wait_exit(DEADLINE)


@contextlib.asynccontextmanager
async def up(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, name: str = "up"
) -> AsyncIterator[Up]:
    """Run `epp up` on a free port; stop it in the end."""
    argv = (sys.executable, "-P", "-m", "epp", "up", "--port=0", *arguments)
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {"TMPDIR": str(temporary), **(env or {})}
    limit = aiohttp.ClientTimeout(total=DEADLINE * 2)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=limit, connector=connector) as client:
        for last in (False, False, True):
            started = Up(await spawn(name, argv, log_dir=folder, env=environment), client)
            try:
                async with asyncio.timeout(START_SECONDS * 2):
                    await started.says(STARTED)
                yield started
                break
            except ProcessDied as died:
                # Another test's process may listen on the port before Envoy does.
                if last or "Address already in use" not in str(died):
                    raise
            finally:
                await started.process.stop(STOP_SECONDS)
