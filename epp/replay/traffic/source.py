"""Files of traffic as lines: plain or compressed, one file or an archive of several.

This file knows no format; it knows what to do with a line that is none.
"""

import io
import math
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar, cast

import msgspec

from epp.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_Row = TypeVar("_Row")
_TAR_MAGIC = slice(257, 262)
_GZIP = 16
"""Added to the window's bits: a gzip member (zlib, `inflateInit2`)."""
_SHOWN = 10
"""Problems that are kept word by word; the others are counted."""
_HEAD = 20


class SourceLine(NamedTuple):
    """A line without its end, and its place: file and number. `cut`: the end was missing."""

    place: str
    text: bytes
    cut: bool = False


class Problems:
    """What is wrong with a source: raised at once where reading is strict, else counted.

    `skipped` lines cannot be used, `reordered` ones are earlier than the line before. `shown` are
    the first problems as text.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.skipped = 0
        self.reordered = 0
        self.shown: list[str] = []

    def skip(self, place: str, problem: str) -> None:
        """Note a line that is left out. Raises `ConfigError` where reading is strict."""
        self.skipped += 1
        self._note(place, problem, "without --strict such lines are skipped and counted")

    def reorder(self, place: str) -> None:
        """Note a line that is out of order. Raises `ConfigError` where reading is strict."""
        self.reordered += 1
        self._note(place, "its time is before that of the line before", "without --strict, sorted")

    def _note(self, place: str, problem: str, otherwise: str) -> None:
        if self.strict:
            raise ConfigError(f"{problem} ({otherwise})", place)
        if len(self.shown) < _SHOWN:
            self.shown.append(f"{place}: {problem}")


class Source:
    """A file, or those of a folder by name; `.zst` and `.gz` unpacked, a tar's members in turn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.split(".")[0]

    def lines(self, problems: Problems) -> Iterator[SourceLine]:
        """Read all lines that are not empty. Raises `ConfigError` where there is no such file.

        Where packed data end too early is a problem at that place.
        """
        for path in self._files():
            with _opened(path) as file:
                read = _members if _is_tar(file) else _numbered
                yield from read(str(path), file, problems)

    def head(self) -> list[SourceLine]:
        """Return the first lines. Raises `ConfigError` where there is no such file."""
        return list(islice(self.lines(Problems()), _HEAD))

    def document(self) -> bytes:
        """Return all of it. Raises `ConfigError` where it cannot be read, or ends too early."""
        return b"\n".join(line.text for line in self.lines(Problems(strict=True)))

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        files = sorted(path for path in self.path.iterdir() if path.is_file())
        return [path for path in files if not path.name.startswith(".")]


def decoded(
    lines: Iterable[SourceLine], decoder: "msgspec.json.Decoder[_Row]", problems: Problems
) -> Iterator[tuple[str, _Row]]:
    """Decode JSON line by line, with the place of each; what is none is a problem."""
    for place, text, cut in lines:
        try:
            yield place, decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problems.skip(place, "the line is cut off" if cut else str(error))


def in_order(
    rows: Iterable[tuple[str, _Row]], time: Callable[[_Row], float], problems: Problems
) -> list[_Row]:
    """Return rows in order of time; one that is earlier than the row before it is noted."""
    listed, last = [], -math.inf
    for place, row in rows:
        if time(row) < last:
            problems.reorder(place)
        last = time(row)
        listed.append(row)
    return sorted(listed, key=time)


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    with file, ExitStack() as opened:
        unpack = next((each for magic, each in _UNPACKED.items() if _begins(file, magic)), None)
        if unpack is None:
            yield file
        else:
            unpacked = opened.enter_context(unpack(path, file))
            yield opened.enter_context(io.BufferedReader(cast(io.RawIOBase, unpacked)))


def _begins(file: io.BufferedReader, magic: bytes) -> bool:
    return file.peek(len(magic)).startswith(magic)


class _Gunzipped(io.RawIOBase):
    """The members of a gzip file, to the last byte that can be unpacked; then it raises.

    `gzip.GzipFile` raises before it has returned the last kilobytes in front of a cut.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._packed = b""
        self._member = zlib.decompressobj(zlib.MAX_WBITS | _GZIP)

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Unpack some bytes; 0 at the end. Raises `EOFError` at a cut, `OSError` for no gzip."""
        room = memoryview(buffer)
        while True:
            packed = self._packed or self._file.read(io.DEFAULT_BUFFER_SIZE)
            if self._member.eof:
                if not packed:
                    return 0
                self._member = zlib.decompressobj(zlib.MAX_WBITS | _GZIP)
            try:
                data = self._member.decompress(packed, len(room))
            except zlib.error as error:
                raise OSError(str(error)) from error
            self._packed = self._member.unconsumed_tail or self._member.unused_data
            if data:
                room[: len(data)] = data
                return len(data)
            if not packed:
                raise EOFError("it ends within a member")


def _gzip(_: Path, file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, _Gunzipped(file))


def _zstd(path: Path, file: BinaryIO) -> BinaryIO:
    try:
        import zstandard  # noqa: PLC0415 - an extra, for who reads such files
    except ImportError as error:
        problem = f"{path} is packed by zstd: pip install 'warmpick[replay]', or `zstd -d` it first"
        raise ConfigError(problem) from error
    return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)


_UNPACKED = {b"\x1f\x8b": _gzip, b"\x28\xb5\x2f\xfd": _zstd}
"""What unpacks a file, by its first bytes."""


def _is_tar(file: io.BufferedReader) -> bool:
    try:
        return file.peek(tarfile.BLOCKSIZE)[_TAR_MAGIC] == b"ustar"
    except _broken():  # which who reads its lines will find, and say where
        return False


def _broken(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the errors of what unpacks, those of reading, and some more."""
    zstandard = sys.modules.get("zstandard")
    return (*more, EOFError, OSError, zlib.error, *((zstandard.ZstdError,) if zstandard else ()))


def _members(path: str, file: BinaryIO, problems: Problems) -> Iterator[SourceLine]:
    place = path
    try:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None:
                    place = f"{path}/{member.name}"
                    yield from _numbered(place, content, problems)
    except _broken(tarfile.TarError) as error:
        problems.skip(place, f"the archive is cut off or damaged: {error}")


def _numbered(path: str, file: Iterable[bytes], problems: Problems) -> Iterator[SourceLine]:
    number, lines = 0, iter(file)
    while True:
        number += 1
        try:
            line = next(lines, b"")
        except _broken() as error:  # at its end, what unpacks zstd stops without a word
            problems.skip(f"{path}:{number}", f"the packed file is cut off or damaged: {error}")
            return
        if not line:
            return
        if line.strip():
            yield SourceLine(f"{path}:{number}", line.strip(), not line.endswith(b"\n"))
