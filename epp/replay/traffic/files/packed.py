"""Regular files, unpacked if they are packed: gzip and zstd by their first bytes."""

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from epp.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file. Raises `ConfigError`, also for what has no end, such as a device or a FIFO."""
    try:
        # Without waiting: a FIFO that nothing writes to would have it wait for ever.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    with file, ExitStack() as unpacking:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"{path} is not a regular file: save its content to one first")
        unpack = next((each for magic, each in _UNPACKED.items() if _begins(file, magic)), None)
        if unpack is None:
            yield file
        else:
            unpacked = unpacking.enter_context(unpack(path, file))
            yield unpacking.enter_context(io.BufferedReader(cast(io.RawIOBase, unpacked)))


def is_there(path: Path) -> bool:
    """Return whether a file or folder exists."""
    try:
        return path.exists()
    except (OSError, ValueError):  # no file has such a name
        return False


def broken(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the errors that reading and decompressing may raise."""
    zstandard = sys.modules.get("zstandard")
    return (*more, EOFError, OSError, zlib.error, *((zstandard.ZstdError,) if zstandard else ()))


def _begins(file: io.BufferedReader, magic: bytes) -> bool:
    return file.peek(len(magic)).startswith(magic)


class _Gunzipped(gzip.GzipFile):
    """A gzip file that is unpacked a piece at a time, so all that precedes a cut is read."""

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Unpack some bytes; 0 at the end. Raises `EOFError` at a cut, `OSError` for other data."""
        return self.readinto1(buffer)


def _gzip(_: Path, file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, _Gunzipped(fileobj=file))


def _zstd(path: Path, file: BinaryIO) -> BinaryIO:
    try:
        import zstandard  # noqa: PLC0415 - an extra, for such files alone
    except ImportError as error:
        problem = f"{path} is packed by zstd: pip install 'warmpick[replay]', or `zstd -d` it first"
        raise ConfigError(problem) from error
    return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)


_UNPACKED = {b"\x1f\x8b": _gzip, b"\x28\xb5\x2f\xfd": _zstd}
"""The decompressor of a file, by its first bytes."""
