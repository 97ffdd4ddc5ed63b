"""The workers of one process: starts them, passes them connections, and restarts them."""

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final, NoReturn

from epp.adapters.workers.link import (
    ENVIRONMENT,
    ParentLink,
    WorkerStart,
    WorkerState,
    page_socket,
)
from epp.app.jobs import keep_running_until
from epp.errors import WarmpickError
from epp.system.logs import Log

_log = Log(__name__)

_PAUSES: Final = 0.1, 15.0
"""Seconds before a worker is started again: the first time, and at most."""
_SILENT_SECONDS: Final = 3.0
"""How long a worker may be silent before others are passed its connections."""
_HUNG_SECONDS: Final = 30.0
"""How long it may be silent before it is killed, and started again."""
_STARTING_SECONDS: Final = 600.0
"""How long a worker may be silent before it listens, as while it loads a tokenizer."""
_LOOK_SECONDS: Final = 1.0
_CANNOT_RUN: Final = 126
"""The status of a program that cannot be run, as shells report it."""
_UNEVEN: Final = 2
"""By how many connections two workers differ before one gives some up."""
_SECRET_BYTES: Final = 32


class WorkerEnded(WarmpickError):
    """A worker has ended, with a status as shells report it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it has ended with status {status}")
        self.status = status


class WorkerProcess:
    """One worker. `run` keeps it running; `changed` is called when its state comes, or it ends."""

    def __init__(
        self, start: WorkerStart, command: Sequence[str], changed: Callable[[], None]
    ) -> None:
        self.number: Final = start.number
        self.pages: Final = page_socket(Path(start.folder), start.number)
        self.starts = 0
        """How often it was started."""
        self.state = WorkerState()
        self.settled = False
        """Whether it was ready once, or has ended: others need not wait for it."""
        self.given = 0
        """Connections that it was passed."""
        self._start: Final = start
        self._command: Final = command
        self._changed: Final = changed
        self._process: asyncio.subprocess.Process | None = None
        self._link: ParentLink | None = None
        self._last_state_at = 0.0
        self._stopping: Final = asyncio.Event()

    @property
    def open(self) -> int:
        """Its open connections, with those that it has not received yet."""
        return self.state.open + self.given - self.state.taken

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None

    @property
    def responsive(self) -> bool:
        """Whether it has sent its state lately."""
        return self.silent() < _SILENT_SECONDS

    def silent(self) -> float:
        """Return the seconds since it last sent its state."""
        return time.monotonic() - self._last_state_at

    async def run(self, never_served: Callable[[], bool]) -> None:
        """Keep it running until it is stopped.

        Raises `WorkerEnded` if it ends and `never_served` returns true: no worker has ever served.
        """

        def ended(_name: str, error: BaseException | None, wait: float) -> None:
            if never_served() and error is not None:
                raise error
            status = error.status if isinstance(error, WorkerEnded) else str(error)
            _log.error("worker.ended", worker=self.number, status=status, again_in=wait)

        name = f"worker {self.number}"
        await keep_running_until(self._stopping, name, self._live, ended, _PAUSES)

    async def _live(self) -> NoReturn:
        """Start its process; raise `WorkerEnded` when that has ended."""
        try:
            raise WorkerEnded(await self._process_status())
        except OSError as error:  # no process or descriptor is left
            _log.error("worker.not_started", worker=self.number, error=str(error))
            raise WorkerEnded(_CANNOT_RUN) from None
        finally:
            self.settled = True
            self._changed()

    async def _process_status(self) -> int:
        """Run its process once; return its status, as shells report it. Raises `OSError`."""
        self.given = 0
        link = ParentLink(self._start, self._receive)
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                env=os.environ | {ENVIRONMENT: str(link.theirs.fileno())},
                pass_fds=(link.theirs.fileno(),),
                start_new_session=True,  # a terminal's Ctrl-C is for the process that starts them
            )
            self._link, self._last_state_at = link, time.monotonic()
            self.starts += 1
            link.started()
            if self._stopping.is_set():  # it was set during the start
                self._signal(signal.SIGTERM)
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                self.kill()
                await process.wait()
                raise
        finally:
            link.close()
            self._process = self._link = None
            self.state = WorkerState()
        return status if status >= 0 else 128 - status

    def _receive(self, state: WorkerState | None) -> None:
        self._last_state_at = time.monotonic()
        self.state = state or WorkerState()
        self.settled = self.settled or self.state.ready
        self._changed()

    def pass_on(self, connection: socket.socket) -> bool:
        """Pass a connection on; return whether it was taken."""
        if self._link is None or not self._link.pass_on(connection):
            return False
        self.given += 1
        return True

    def shed(self, connections: int) -> None:
        """Make it give up some connections."""
        if self._link is not None:
            self._link.shed(connections)

    def stop(self) -> None:
        """Stop it in order."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):  # it has just ended
                self._process.send_signal(number)


class Supervisor:
    """All workers, each started by a command. `changed` is called as in `WorkerProcess`.

    Their sockets are in a folder.
    """

    def __init__(
        self, count: int, folder: Path, command: Sequence[str], changed: Callable[[], None]
    ) -> None:
        secret = secrets.token_bytes(_SECRET_BYTES)
        self.workers: Final = [
            WorkerProcess(
                WorkerStart(number=number, count=count, folder=str(folder), secret=secret),
                command,
                changed,
            )
            for number in range(count)
        ]
        self.served = False
        """Whether one has ever taken connections."""
        self._turn = 0

    @property
    def listening(self) -> bool:
        """Whether one takes connections."""
        return any(each.state.listening for each in self.workers)

    @property
    def ready(self) -> bool:
        """Whether traffic may come: one is ready, and none is starting for the first time."""
        settled = all(each.settled for each in self.workers)
        return settled and any(each.state.ready for each in self.workers)

    def deal(self, connection: socket.socket) -> bool:
        """Pass a connection to the worker with the fewest; return whether one took it.

        If the workers listened at the port themselves (SO_REUSEPORT), a hash of addresses would
        choose. A gateway has few connections, and half of the time two would go to the same worker.
        """
        self._turn += 1
        count = len(self.workers)

        def order(each: WorkerProcess) -> tuple[bool, bool, int, int]:
            after = (each.number - self._turn) % count
            return not each.responsive, not each.state.ready, each.open, after

        listening = sorted((each for each in self.workers if each.state.listening), key=order)
        return any(each.pass_on(connection) for each in listening)

    async def run(self) -> None:
        """Keep all running until they are stopped. Raises `WorkerEnded` if none can start."""
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._look_after(), name="workers")
            running = [
                tasks.create_task(each.run(lambda: not self.served), name=f"worker {each.number}")
                for each in self.workers
            ]
            await asyncio.wait(running)
            looking.cancel()

    async def _look_after(self) -> NoReturn:
        while True:
            looked = time.monotonic()
            await asyncio.sleep(_LOOK_SECONDS)
            if time.monotonic() - looked > _SILENT_SECONDS:
                continue  # this process was paused itself: states are not read yet
            for each in self.workers:
                patience = _HUNG_SECONDS if each.state.listening else _STARTING_SECONDS
                if each.running and each.silent() > patience:
                    _log.error("worker.hung", worker=each.number, seconds=round(each.silent()))
                    each.kill()
            self.even_out()

    def even_out(self) -> None:
        """Ask the worker with the most connections to give up some, if another has far fewer."""
        ready = [each for each in self.workers if each.responsive and each.state.ready]
        opened = attrgetter("open")
        if len(ready) > 1:
            most, least = max(ready, key=opened), min(ready, key=opened)
            more = most.open - least.open
            if more >= _UNEVEN:
                most.shed(more // 2)

    def stop(self) -> None:
        """Stop all in order."""
        for each in self.workers:
            each.stop()

    def kill(self) -> None:
        """End all at once."""
        for each in self.workers:
            each.kill()
