"""Operators' files, read without blocking, and followed for changes."""

import os
import stat
from pathlib import Path

from epp.errors import ConfigError, reason

Signature = tuple[int, int, int, int]
"""mtime and ctime (ns), inode and size of the file, or of the target of a symlink.

Kubernetes updates a mounted ConfigMap by turning a symlink to another directory.
"""
_INODE, _SIZE = 2, 3
_MOST_WAITS = 5
"""For how many calls a file that changes is not returned: some are written for ever."""


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a file, without waiting for a writer.

    Raises `ConfigError`, with the path as its place, for what cannot be read, for what is not a
    regular file (a FIFO, a device, a socket, a directory), and for more than `most` bytes.
    """
    return _read(path, most)[0]


def signature_of(path: Path) -> Signature:
    """Return a value that changes with a file. Raises `ConfigError` if it is not a regular one."""
    status = _status(path)
    _check(status, path)
    return _signature(status)


class FollowedFile:
    """The content of the file at `path`, at most `most` bytes, which is returned once.

    A file that is written in place, rather than replaced, may be incomplete. It is returned once it
    has not changed between two calls, or if it is not empty and keeps changing before every call.

    After a failure (a missing file, no rights, no descriptor left), the next call tries again,
    because the file may become readable without changing.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        self._most = most
        self._seen: Signature | None = None
        self._unfinished: Signature | None = None  # of what may still be written
        self._waits = 0
        self._again = False

    def changed(self) -> bytes | None:
        """Return the content if it has changed since the last call, else None.

        Raises `ConfigError` as `read_regular` does.
        """
        seen, self._seen = self._seen, None
        if seen is not None and not self._is_due(seen, _signature(_status(self.path))):
            self._seen = seen
            return None
        self._again, self._waits = False, 0
        content, self._seen = _read(self.path, self._most)
        return content

    def _is_due(self, seen: Signature, found: Signature) -> bool:
        """Return whether to read the file, given its last and its present signature."""
        before, self._unfinished = self._unfinished, found
        if found in {seen, before} or found[_INODE] != seen[_INODE]:
            self._waits = 0
            return found != seen or self._again
        self._waits += 1  # it is being written in place
        return self._waits > _MOST_WAITS and found[_SIZE] > 0

    def forget(self) -> None:
        """Make the next call return the content, changed or not."""
        self._again = True


def _read(path: Path, most: int) -> tuple[bytes, Signature]:
    _check(_status(path), path)  # a device may act on being opened
    try:
        with open(path, "rb", opener=_at_once) as file:
            status = os.fstat(file.fileno())
            _check(status, path)
            content = file.read(most + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(content) > most:
        raise ConfigError(f"it is longer than {most} bytes", str(path))
    return content, _signature(status)


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _check(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError("it is not a regular file", str(path))


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"cannot be read: {reason(error)}", str(path))


def _at_once(path: str, flags: int) -> int:
    # open(2): without O_NONBLOCK a FIFO is not open before somebody writes to it.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _signature(status: os.stat_result) -> Signature:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
