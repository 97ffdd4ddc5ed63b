"""The link between a process and one of its workers: a pair of Unix sockets, a packet a message.

The process sends a worker its number and settings, passes connections on, and asks it to give some
up; the worker sends its state. A packet to a worker is one byte for its kind, and JSON; a
connection is attached to it (unix(7), SCM_RIGHTS). The link ends with either side.
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
    """What a worker is started with."""

    number: int
    """Its number, from 0."""
    count: int
    """The number of workers."""
    folder: str
    """The folder of the workers' sockets, which no other user may read."""
    secret: bytes
    """The key of block hashes and of the exchange, if no file has one."""

    @property
    def page_socket(self) -> Path:
        """The path at which it serves its pages."""
        return page_socket(Path(self.folder), self.number)


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a worker."""

    listening: bool = False
    """Whether it takes connections."""
    ready: bool = False
    """Whether traffic may come."""
    taken: int = 0
    """How many connections it was passed so far."""
    open: int = 0
    """How many of these are open, without those that it is giving up."""


def page_socket(folder: Path, number: int) -> Path:
    """Return the path at which a worker serves its pages."""
    return folder / f"pages-{number}"


class ParentLink:
    """The process's side. `on_state` is called with each state, and with None at the end.

    A quick worker may report before its start is known to have ended; its reports wait for
    `started`.
    """

    def __init__(self, start: WorkerStart, on_state: Callable[[WorkerState | None], None]) -> None:
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(0)
        self._on_state: Final = on_state
        self._loop: Final = asyncio.get_running_loop()
        self._closed = False
        self._socket.send(_START + msgspec.json.encode(start))

    def started(self) -> None:
        """Close the worker's end here, once the worker has it, and read what it says."""
        self.theirs.close()
        self._loop.add_reader(self._socket, self._read)

    def pass_on(self, connection: socket.socket) -> bool:
        """Pass a connection on; return False if the worker reads too slowly, or is gone."""
        try:
            socket.send_fds(self._socket, [_CONNECTION], [connection.fileno()])
        except OSError:
            return False
        return True

    def shed(self, connections: int) -> None:
        """Ask a worker to give up some connections, so that their peers connect again."""
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
            self._on_state(None)
            return
        self._on_state(msgspec.json.decode(packet, type=WorkerState))

    def close(self) -> None:
        """End the link: a worker that still runs stops in order."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self.theirs.close()


class WorkerLink:
    """A worker's side. `start` is what it is started with."""

    def __init__(self, ours: socket.socket) -> None:
        """Wait for `start`. Raises `OSError` or `msgspec.DecodeError`."""
        packet = ours.recv(_LONGEST)
        self.start: Final = msgspec.json.decode(packet[1:], type=WorkerStart)
        self._socket: Final = ours

    def open(
        self,
        take: Callable[[socket.socket | None], None],
        shed: Callable[[int], None],
        gone: Callable[[], None],
    ) -> None:
        """Call `take` with each connection, `shed` with a number of connections to give up.

        `take` is given None for a connection for which no descriptor is left, which is closed.
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
            if packet[:1] == _CONNECTION:
                take(socket.socket(fileno=descriptors[0]) if descriptors else None)
            elif packet[:1] == _SHED:
                shed(msgspec.json.decode(packet[1:], type=int))
            elif not packet:
                loop.remove_reader(self._socket)
                gone()

        loop.add_reader(self._socket, read)

    def send_state(self, state: WorkerState) -> None:
        """Send this worker's state, unless there is no room."""
        with suppress(OSError):  # the next state replaces it
            self._socket.send(msgspec.json.encode(state))


def link_of(environ: Mapping[str, str]) -> WorkerLink | None:
    """Return the link of this process if it is a worker. Raises `OSError` for a broken one.

    Child processes do not inherit the link.
    """
    number = environ.get(ENVIRONMENT)
    if number is None:
        return None
    descriptor = int(number)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 (its only argument)
    return WorkerLink(socket.socket(fileno=descriptor))
