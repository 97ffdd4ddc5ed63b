"""Child processes that cannot outlive this one, with their logs in files.

Each child leads its own process group (a Ctrl-C in the terminal does not reach it; `stop` does)
and asks the kernel to be killed when its parent dies.
"""

import asyncio
import contextlib
import errno
import itertools
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import aiohttp

from epp.errors import WarmpickError

T = TypeVar("T")

TAIL_LINES = 15
POLL_SECONDS = 0.05
STDOUT_LIMIT = 1 << 20

# The child replaces itself with the real program, so no hook runs between fork and exec (not safe
# beside gRPC's threads). A parent that died before prctl took effect shows as another parent id.
_EXEC_UNTIL_PARENT_DIES = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, signal.SIGKILL)
if os.getppid() != parent:
    os._exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
"""


_NOT_EPHEMERAL = range(10_000, 20_000)
"""Ports below those of outgoing connections (Linux, `net.ipv4.ip_local_port_range`)."""
_TRIES = 64
_next_ports = itertools.cycle(random.sample(_NOT_EPHEMERAL, len(_NOT_EPHEMERAL)))


class ProcessDied(WarmpickError):
    """A child ended before it was stopped, or did not become ready in time.

    The message has its name, its exit code and the last lines of its log.
    """


def free_port(ip: str = "127.0.0.1") -> int:
    """Return a TCP port of `ip` that was free a moment ago.

    It is not one of those that outgoing connections take, which would take it before its user does,
    nor one that was returned lately, whose user may not listen yet. Raises `OSError` if the machine
    has no such address.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    for port in itertools.chain(itertools.islice(_next_ports, _TRIES), (0,)):
        with socket.socket(family) as listener:
            try:
                listener.bind((ip, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return int(listener.getsockname()[1])
    raise OSError(errno.EADDRINUSE, "no port is free")


class Process:
    """A running child, as `spawn` returns it."""

    def __init__(
        self, name: str, child: asyncio.subprocess.Process, stdout: BinaryIO, log_path: Path
    ) -> None:
        self.name = name
        self.pid = child.pid
        self.log_path = log_path
        self._child = child
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._exit = asyncio.create_task(child.wait(), name=f"exit of {name}")
        self._pump = asyncio.create_task(self._copy(stdout), name=f"stdout of {name}")

    def alive(self) -> bool:
        """Return whether the child still runs."""
        return self._child.returncode is None

    async def wait_ready_line(self, timeout: float) -> dict[str, Any]:  # noqa: ASYNC109 - deadline of the child, not of the await
        """Return the first JSON object that the child prints as a line of stdout."""
        ready = asyncio.shield(self._ready)
        return await self.before_exit(ready, "printed no JSON", timeout)

    async def wait_http(self, url: str, timeout: float, status: int = 200) -> None:  # noqa: ASYNC109 - as above
        """Return as soon as `url` answers `status`."""
        await self.before_exit(_poll(url, status), f"did not answer {status} at {url}", timeout)

    async def wait_exit(self, timeout: float) -> int:  # noqa: ASYNC109 - as above
        """Return the exit code once the child has ended by itself."""
        async with asyncio.timeout(timeout):
            return await asyncio.shield(self._exit)

    async def before_exit(self, work: Awaitable[T], failure: str, limit: float) -> T:
        """Await `work`. Raises `ProcessDied` if the child ends first or `limit` seconds pass.

        The message of the latter has `failure`, which says what the child did not do.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait(
                {task, self._exit}, timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
            if task.done():
                return task.result()
        finally:
            task.cancel()
        if not self.alive():
            raise await self._death()
        raise ProcessDied(f"{self.name} {failure} within {limit:g} s{self._tail()}")

    async def watch(self) -> NoReturn:
        """Raise `ProcessDied` when the child ends."""
        await asyncio.shield(self._exit)
        raise await self._death()

    def kill(self) -> None:
        """Send SIGKILL to the child and its whole group."""
        self._signal(signal.SIGKILL)

    async def stop(self, grace: float = 5.0) -> None:
        """End the child and its whole group: SIGTERM, then SIGKILL after `grace` seconds."""
        if self.alive():
            self._signal(signal.SIGTERM)
            await asyncio.wait({self._exit}, timeout=grace)
        self._signal(signal.SIGKILL)
        await self._exit
        await self._read_to_end(5)  # its whole group was killed
        self._pump.cancel()
        await asyncio.wait({self._pump})

    async def _read_to_end(self, seconds: float) -> None:
        """Copy stdout until every process that holds it open has ended, at most `seconds`."""
        await asyncio.wait({self._pump}, timeout=seconds)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _death(self) -> ProcessDied:
        await self._read_to_end(1)  # its last lines
        code = self._child.returncode
        return ProcessDied(f"{self.name} ended with exit code {code}{self._tail()}")

    async def _copy(self, stdout: BinaryIO) -> None:
        reader = asyncio.StreamReader(STDOUT_LIMIT)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), stdout
        )
        with contextlib.closing(transport), self.log_path.open("ab", buffering=0) as log:
            while line := await _next_line(reader):
                with contextlib.suppress(OSError):  # a full disk must not stop the child
                    log.write(line)
                if not self._ready.done() and line.startswith(b"{"):
                    with contextlib.suppress(ValueError):
                        self._ready.set_result(json.loads(line))

    def _tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "".join(f"\n  {line}" for line in lines) or " (and logged nothing)"


async def spawn(
    name: str, argv: Sequence[str], *, log_dir: Path, env: Mapping[str, str] | None = None
) -> Process:
    """Start `argv`; stdout and stderr go to `log_dir/NAME.log`.

    `env` is added to this process's environment. A program that cannot be run appears as a child
    that ended with exit code 1 and logged why.
    """
    log_path = log_dir / f"{name}.log"
    launcher = (sys.executable, "-I", "-S", "-c", _EXEC_UNTIL_PARENT_DIES, str(os.getpid()))
    log_path.unlink(missing_ok=True)
    # Not asyncio's own pipe: the end of a child is noticed while others hold its stdout open.
    reading, writing = os.pipe()
    stdout = os.fdopen(reading, "rb", 0)
    # The log is appended to: the copy of stdout goes to the same file.
    try:
        with os.fdopen(writing, "wb", 0) as end, log_path.open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *launcher,
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=end,
                stderr=log,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
    except BaseException:
        stdout.close()
        raise
    return Process(name, child, stdout, log_path)


async def _next_line(stdout: asyncio.StreamReader) -> bytes:
    """Return the next line, or a part of one that is too long; nothing at the end."""
    try:
        return await stdout.readuntil()
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stdout.read(error.consumed)


async def _poll(url: str, status: int) -> None:
    limit = aiohttp.ClientTimeout(total=2)
    async with aiohttp.ClientSession(timeout=limit) as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(url) as response:
                    if response.status == status:
                        return
            await asyncio.sleep(POLL_SECONDS)
