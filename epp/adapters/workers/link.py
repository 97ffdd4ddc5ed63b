"""The link between a process and one of its workers: a pair of Unix sockets, a message a packet.

The process says who a worker is, passes connections on, and asks for some back; the worker says
how it is. A packet has one byte that says what it is, and JSON; a connection comes beside it
(unix(7), SCM_RIGHTS). The link ends with either side.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

ENVIRONMENT: Final = "WARMPICK_WORKER"
"""The variable that names a worker's end of its link, by its number."""
_LONGEST: Final = 1 << 16
_START, _CONNECTION, _SHED = b"w", b"c", b"s"


class WorkerStart(msgspec.Struct, frozen=True, kw_only=True):
    """Who a worker is."""

    number: int
    """From 0."""
    count: int
    """How many there are."""
    folder: str
    """Where the workers' sockets are: nobody else may read it."""
    secret: bytes
    """Keys block hashes and the exchange, if no file has one."""

    @property
    def page_socket(self) -> Path:
        """Where it serves its pages."""
        return page_socket(Path(self.folder), self.number)


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is."""

    listening: bool = False
    """Whether it takes connections."""
    ready: bool = False
    """Whether traffic may come."""
    taken: int = 0
    """Connections that it was passed so far."""
    open: int = 0
    """Those of them that are open, except those that are being given up."""


def page_socket(folder: Path, number: int) -> Path:
    """Return where a worker serves its pages."""
    return folder / f"pages-{number}"


class ParentLink:
    """The process's side. `heard` is called with each state, and with None at the end."""

    def __init__(self, start: WorkerStart, heard: Callable[[WorkerState | None], None]) -> None:
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(0)
        self._heard: Final = heard
        self._loop: Final = asyncio.get_running_loop()
        self._closed = False
        self._socket.send(_START + msgspec.json.encode(start))
        self._loop.add_reader(self._socket, self._read)

    def started(self) -> None:
        """Let go of the worker's end: it has it."""
        self.theirs.close()

    def pass_on(self, connection: socket.socket) -> bool:
        """Pass a connection on; return False if the worker reads too slowly, or is gone."""
        if self._closed:
            return False
        try:
            socket.send_fds(self._socket, [_CONNECTION], [connection.fileno()])
        except OSError:
            return False
        return True

    def shed(self, connections: int) -> None:
        """Ask a worker to give some connections up, so that their peers connect anew."""
        with suppress(OSError):
            self._socket.send(_SHED + msgspec.json.encode(connections))

    def _read(self) -> None:
        try:
            packet = self._socket.recv(_LONGEST)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self.close()
            self._heard(None)
            return
        self._heard(msgspec.json.decode(packet, type=WorkerState))

    def close(self) -> None:
        """End the link: a worker that still runs stops in order."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self.theirs.close()


class WorkerLink:
    """A worker's side. `start` is who it is."""

    def __init__(self, ours: socket.socket) -> None:
        """Wait for who this worker is. Raises `OSError` or `msgspec.DecodeError`."""
        packet = ours.recv(_LONGEST)
        self.start: Final = msgspec.json.decode(packet[1:], type=WorkerStart)
        self._socket: Final = ours
        self._said = WorkerState()

    def open(
        self,
        take: Callable[[socket.socket], None],
        shed: Callable[[int], None],
        gone: Callable[[], None],
    ) -> None:
        """Call `take` with each connection, `shed` with how many are wanted back.

        `gone` is called when the process has ended.
        """
        self._socket.settimeout(0)
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                packet, descriptors, _, _ = socket.recv_fds(
                    self._socket, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                packet, descriptors = b"", []
            for each in descriptors:
                take(socket.socket(fileno=each))
            if packet[:1] == _SHED:
                shed(msgspec.json.decode(packet[1:], type=int))
            elif not packet:
                loop.remove_reader(self._socket)
                gone()

        loop.add_reader(self._socket, read)

    def say(self, state: WorkerState) -> None:
        """Say how this worker is, as soon as there is room."""
        with suppress(OSError):  # what is said next has it, too
            self._socket.send(msgspec.json.encode(state))


def link_of(environ: Mapping[str, str]) -> WorkerLink | None:
    """Return the link of this process if it is a worker. Raises `OSError` for one that is broken.

    What it starts itself does not inherit it.
    """
    number = environ.get(ENVIRONMENT)
    if number is None:
        return None
    descriptor = int(number)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 (its only argument)
    return WorkerLink(socket.socket(fileno=descriptor))
