"""The parts of recordings in a folder: files of bounded size; the oldest are deleted."""

import errno
import gzip
import os
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from epp.protocol.recording import SUFFIX

_LEVEL = 1
"""The level of gzip: hashes are random bytes, which no level makes fewer."""
_PARTS_TO_A_FOLDER = 16
_LONGEST_PART = 64 << 20


def check_folder(folder: Path) -> None:
    """Make a folder for recordings if it is missing.

    Raises `OSError` if no file can be made in it, except because the disk is full: that may change.
    """
    from tempfile import TemporaryFile  # noqa: PLC0415 (slow, and few pickers record)

    try:
        _make(folder)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise


def _make(folder: Path) -> None:
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():  # else another writer has made it
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    else:
        folder.chmod(0o700)  # whatever the umask takes away


class Parts:
    """The parts of one recording, written one after another; names are in the order of time.

    All parts of one pool's recordings in the folder together take at most `most_bytes` and the
    bytes of one `append`. Others may write and remove parts of the same pool there: the part that
    was written to longest ago is removed first. Only the user can access a new folder and the
    parts. Every method raises `OSError`.
    """

    def __init__(
        self, folder: Path, pool: str, salt: str, started: datetime, most_bytes: int
    ) -> None:
        name = re.sub(r"[^\w.-]", "_", pool)
        self._folder = folder
        self._stem = f"{name}-{started:%Y%m%dT%H%M%S.%fZ}-{salt}"
        self._known = re.compile(
            rf"{re.escape(name)}-\d{{8}}T\d{{6}}\.\d{{6}}Z-[0-9a-f]+-\d+{re.escape(SUFFIX)}"
        )
        self._most_bytes = most_bytes
        self._part_bytes = min(_LONGEST_PART, most_bytes // _PARTS_TO_A_FOLDER)
        self._file: BinaryIO | None = None
        self._path = folder
        self._written = 0
        self.part = 0

    @property
    def full(self) -> bool:
        """Whether the next lines go to a new part: none is open, or it is full or removed."""
        if self._file is None or self._written >= self._part_bytes:
            return True
        return os.fstat(self._file.fileno()).st_nlink == 0

    def begin(self) -> None:
        """Open the next part, and remove the oldest if there is no room for it."""
        self.close()
        _make(self._folder)
        self._make_room()
        self.part += 1
        self._path = self._folder / f"{self._stem}-{self.part:06}{SUFFIX}"
        self._written = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        number = os.open(self._path, flags, 0o600)
        self._file = os.fdopen(number, "wb", buffering=0)
        os.fchmod(number, 0o600)  # whatever the umask takes away

    def append(self, lines: bytes) -> int:
        """Write lines as one gzip member, whole; return its bytes."""
        member = gzip.compress(lines, _LEVEL, mtime=0)
        if self._file is None:
            raise OSError("no part is open")
        left = memoryview(member)
        while left:  # without a buffer a write may be short
            left = left[self._file.write(left) :]
        self._written += len(member)
        return len(member)

    def close(self) -> None:
        """Close the open part, if there is one, and remove it if nothing is whole in it."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # on a full disk, closing fails too
                file.close()
            if not self._written:
                with suppress(OSError):
                    self._path.unlink()

    def _make_room(self) -> None:
        found: list[tuple[int, str, int]] = []
        for path in self._folder.iterdir():
            if self._known.fullmatch(path.name):
                with suppress(FileNotFoundError):  # another writer has removed it
                    facts = path.stat()
                    found.append((facts.st_mtime_ns, path.name, facts.st_size))
        excess = sum(size for *_, size in found) + self._part_bytes - self._most_bytes
        for _, name, size in sorted(found):
            if excess <= 0:
                break
            (self._folder / name).unlink(missing_ok=True)
            excess -= size
