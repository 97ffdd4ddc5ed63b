"""Processes that are started again when they end, and whose logs are passed on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from epp.app.jobs import keep_running
from epp.gateway.processes import Process, ProcessDied, spawn

_PAUSES = 0.1, 15.0
"""Seconds before a process is started again: the first time, and at most."""
_MAX_LOG_BYTES = 1 << 20
_LOG_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a child calls.

    `ready` waits until the process serves. `changed` is given True whenever it does, and False
    when it has ended; `say` a line for people, `line` each line that the process logs.
    """

    ready: Callable[[Process], Awaitable[None]]
    changed: Callable[[bool], Awaitable[None]]
    say: Callable[[str], None]
    line: Callable[[str], None]


class Child:
    """One process, kept running."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path, hooks: Hooks) -> None:
        self.name = name
        self._argv, self._folder, self._hooks = argv, folder, hooks
        self._process: Process | None = None
        self._read = 0
        self.ended = False
        """Whether it has ended by itself, and was not started again yet."""

    async def start(self) -> None:
        """Start it. Raises `ProcessDied` if it ends, or is not ready in time."""
        self._read = 0
        self._process = await spawn(self.name, self._argv, log_dir=self._folder)
        self.ended = False
        try:
            await self._hooks.ready(self._process)
        except ProcessDied:
            await self._process.stop(0)
            raise
        await self._hooks.changed(True)  # noqa: FBT003 (its only argument)

    async def run(self) -> NoReturn:
        """Keep it running, after `start`, until cancelled."""
        await keep_running(self.name, self._live, self._lost, _PAUSES)

    async def _live(self) -> NoReturn:
        """Start it if it has ended before; raise `ProcessDied` when it ends."""
        if self.ended:
            try:
                await self.start()
                self._hooks.say(f"{self.name} is back")
            except ProcessDied as error:
                for line in str(error).split("\n"):
                    self._hooks.say(line)
        try:
            await self._watch()
        except ProcessDied:
            self.ended = True
            self.pass_on()  # its last lines: a new start empties the log
            await self._hooks.changed(False)  # noqa: FBT003 (as above)
            raise

    async def _watch(self) -> NoReturn:
        if self._process is None:
            raise ProcessDied(f"{self.name} was not started")
        await self._process.watch()

    def _lost(self, _name: str, error: BaseException | None, _wait: float) -> None:
        problem = str(error).partition("\n")[0].removesuffix(" (and logged nothing)")
        self._hooks.say(f"{problem}; it is started again")

    async def follow_log(self) -> NoReturn:
        """Pass on what it logs, until cancelled."""
        while True:
            await asyncio.sleep(_LOG_SECONDS)
            self.pass_on()

    def pass_on(self) -> None:
        """Pass on its new log lines; a long log is emptied."""
        if self._process is None:
            return
        path = self._process.log_path
        try:
            with path.open("rb") as log:
                log.seek(self._read)
                text = log.read()
        except OSError:
            return
        whole, _, _ = text.rpartition(b"\n")
        self._read += len(whole) + bool(whole)
        if len(whole) + 1 == len(text) and self._read > _MAX_LOG_BYTES:
            path.write_bytes(b"")  # it is appended to: what comes next is its beginning
            self._read = 0
        for line in whole.decode(errors="replace").split("\n") if whole else ():
            self._hooks.line(line)

    def kill(self) -> None:
        """Kill it, because it hangs."""
        if self._process is not None:
            self._process.kill()

    async def stop(self, grace: float) -> None:
        """End it for good: SIGTERM, and SIGKILL after `grace` seconds."""
        self.pass_on()
        if self._process is not None:
            await self._process.stop(grace)
