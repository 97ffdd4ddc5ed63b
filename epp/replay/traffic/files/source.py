"""Files of traffic as lines: plain or packed, one file or an archive of several.

This module knows no format, only how to treat a bad line, and how long a file may be.
"""

import codecs
import io
import math
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from epp.errors import ConfigError
from epp.printable import printable
from epp.replay.traffic.bounds import MAX_REQUESTS, MAX_SECONDS, too_much
from epp.replay.traffic.files.packed import broken, is_there, opened

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_Row = TypeVar("_Row")
_TAR_MAGIC = slice(257, 262)
_FILES = frozenset((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE))
MAX_BYTES = 4 << 30
"""Bytes of a file or a folder, unpacked."""
MAX_LINES = 1 << 23
"""Lines of a file or a folder, also empty ones."""
MAX_LINE_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 128 << 20
"""Bytes of a file that is one document."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of decoding text that is not JSON, or is nested too deeply."""
_SHOWN = 10
"""Problems that are kept word by word; the others are counted."""
_SHOWN_CHARACTERS = 300


class SourceLine(NamedTuple):
    """A line without its end, and its place: file and number. `cut`: the end was missing."""

    place: str
    text: bytes
    cut: bool = False


class Problems:
    """The problems of a source: raised at once if reading is strict, otherwise counted.

    `skipped` lines cannot be used, `reordered` ones are earlier than the line before. `shown` are
    the first problems as text.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.skipped = 0
        self.reordered = 0
        self.shown: list[str] = []

    @property
    def first(self) -> str:
        """The first problem as the end of a sentence; empty if there is none."""
        return f"; the first problem is: {self.shown[0]}" if self.shown else ""

    def skip(self, place: str, problem: str) -> None:
        """Note a line that is left out. Raises `ConfigError` if reading is strict."""
        self.skipped += 1
        self._note(place, problem, "without --strict such lines are skipped and counted")

    def undecoded(self, line: SourceLine, error: Exception) -> None:
        """Note a line that could not be decoded. Raises `ConfigError` if reading is strict."""
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        self.skip(line.place, "the line is cut off" if line.cut else said)

    def reorder(self, place: str) -> None:
        """Note a line that is out of order. Raises `ConfigError` if reading is strict."""
        self.reordered += 1
        self._note(place, "its time is before that of the line before", "without --strict, sorted")

    def _note(self, place: str, problem: str, otherwise: str) -> None:
        place, problem = printable(place), printable(problem, _SHOWN_CHARACTERS)
        if self.strict:
            raise ConfigError(f"{problem} ({otherwise})", place)
        if len(self.shown) < _SHOWN:
            self.shown.append(f"{place}: {problem}")


class Source:
    """A file, or those of a folder by name; `.zst` and `.gz` unpacked, a tar's members in turn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.split(".")[0] or path.resolve().name
        self.is_folder = is_there(path) and path.is_dir()

    def lines(self, problems: Problems, longest: int = MAX_LINE_BYTES) -> Iterator[SourceLine]:
        """Read all lines that are not empty, of `longest` bytes at most.

        A longer line, and packed data that end too early, are problems at that place. Raises
        `ConfigError` if there is no such file, or if it is too long.
        """
        reader = _Reader(problems, longest)
        for path in self._files():
            with opened(path) as file:
                read = reader.members if _is_tar(file) else reader.numbered
                yield from read(str(path), file)

    def document(self) -> bytes:
        """Return all of it. Raises `ConfigError` if it cannot be read, or ends too early."""
        parts, size = list[bytes](), 0
        for line in self.lines(Problems(strict=True), MAX_DOCUMENT_BYTES):
            parts.append(line.text)
            size += len(line.text) + 1
            if size > MAX_DOCUMENT_BYTES:
                raise ConfigError(
                    f"a document may have at most {MAX_DOCUMENT_BYTES:,} bytes", line.place
                )
        return b"\n".join(parts)

    def _files(self) -> list[Path]:
        if not self.is_folder:
            return [self.path]
        files = sorted(path for path in self.path.iterdir() if path.is_file())
        return [path for path in files if not path.name.startswith(".")]


def decoded(
    lines: Iterable[SourceLine], decoder: "msgspec.json.Decoder[_Row]", problems: Problems
) -> Iterator[tuple[str, _Row]]:
    """Decode JSON line by line, with the place of each; a line that is not JSON is a problem."""
    for line in lines:
        try:
            yield line.place, decoder.decode(line.text)
        except UNREADABLE as error:
            problems.undecoded(line, error)


def in_order(
    rows: Iterable[tuple[str, _Row]],
    time: Callable[[_Row], float],
    problems: Problems,
    *,
    noted: bool = True,
) -> list[_Row]:
    """Return rows in order of time (seconds); a row earlier than the one before it is `noted`.

    Rows more than `MAX_SECONDS` before or after most others are left out, and so are rows without a
    time (NaN) if others have one. Raises `ConfigError` for too many rows.
    """
    listed = list[tuple[float, str, _Row]]()
    for place, row in rows:
        listed.append((time(row), place, row))
        if len(listed) > MAX_REQUESTS:
            raise too_much(place)
    if all(math.isnan(at) for at, _, _ in listed):
        return [row for _, _, row in listed]
    earliest, latest = _most_within([at for at, _, _ in listed if math.isfinite(at)])
    kept, last = list[tuple[float, _Row]](), -math.inf
    for at, place, row in listed:
        if not earliest <= at <= latest:
            far = "its time is more than a year from most others"
            problems.skip(place, "it has no time, and others have" if math.isnan(at) else far)
            continue
        if noted and at < last:
            problems.reorder(place)
        last = at
        kept.append((at, row))
    return [row for _, row in sorted(kept, key=itemgetter(0))]


def _most_within(times: list[float]) -> tuple[float, float]:
    """Return the first and the last time of the `MAX_SECONDS` that contain the most times."""
    times.sort()
    best, first = (0, 0), 0
    for last, at in enumerate(times):
        while at - times[first] > MAX_SECONDS:
            first += 1
        if last - first > best[1] - best[0]:
            best = first, last
    return (times[best[0]], times[best[1]]) if times else (0.0, 0.0)


def _is_tar(file: io.BufferedReader) -> bool:
    try:
        return file.peek(tarfile.BLOCKSIZE)[_TAR_MAGIC] == b"ustar"
    except broken():  # reading its lines finds that, too, and where it is
        return False


class _Reader:
    """Reads lines of `longest` bytes at most; the bounds are for all files together."""

    def __init__(self, problems: Problems, longest: int) -> None:
        self._problems = problems
        self._longest = longest
        self._bytes = MAX_BYTES
        self._lines = MAX_LINES

    def members(self, path: str, file: io.BufferedReader) -> Iterator[SourceLine]:
        """Read the regular files of an archive, under the names that their first headers have.

        Other entries of an archive (longer names, times) are not needed, and not unpacked.
        """
        place = path
        try:
            while header := file.read(tarfile.BLOCKSIZE).rstrip(b"\0"):
                self._count(place, tarfile.BLOCKSIZE, lines=1)
                whole = header.ljust(tarfile.BLOCKSIZE, b"\0")
                member = tarfile.TarInfo.frombuf(whole, "utf-8", "replace")
                content = _Member(file, member.size)
                if member.type in _FILES:
                    place = f"{path}/{member.name}"
                    if not (yield from self.numbered(place, io.BufferedReader(content))):
                        return
                while skipped := content.skip():
                    self._count(place, skipped, lines=0)
        except broken(tarfile.TarError) as error:
            self._problems.skip(place, f"the archive is cut off or damaged: {error}")

    def numbered(self, path: str, file: io.BufferedReader) -> Generator[SourceLine, None, bool]:
        """Read the lines of one file; return whether it was whole."""
        broke = broken()
        for number in count(1):
            place = f"{path}:{number}"
            try:
                line = file.readline(self._longest + 1)
                is_long = len(line) > self._longest and not line.endswith(b"\n")
                rest = line if is_long else b""
                while rest and not rest.endswith(b"\n"):
                    self._count(place, len(rest), lines=0)
                    rest = file.readline(self._longest)
            except broke as error:  # at its end, what unpacks zstd stops without a word
                self._problems.skip(place, f"the packed file is cut off or damaged: {error}")
                return False
            if not line:
                break
            self._count(place, len(line), lines=1)
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if is_long:
                self._problems.skip(place, f"the line has more than {self._longest:,} bytes")
            elif text := line.strip():
                yield SourceLine(place, text, not line.endswith(b"\n"))
        return True

    def _count(self, place: str, size: int, lines: int) -> None:
        self._bytes -= size
        self._lines -= lines
        if min(self._bytes, self._lines) < 0:
            raise ConfigError(
                f"up to there it has {MAX_BYTES >> 30} GiB, or {MAX_LINES:,} lines, which is the"
                " most that is read: replay a part of it",
                place,
            )


class _Member(io.RawIOBase):
    """The content of an archive's member: the next `size` bytes of the archive."""

    def __init__(self, file: io.BufferedReader, size: int) -> None:
        if size < 0:
            raise tarfile.ReadError("a member has a negative size")
        self._file = file
        self._left = size
        self._padding = -size % tarfile.BLOCKSIZE

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read some bytes; 0 at the end. Raises `EOFError` if the archive ends before it."""
        room = memoryview(buffer)[: self._left]
        size = self._file.readinto(room)
        if self._left and not size:
            raise EOFError("it ends within a member")
        self._left -= size
        return size

    def skip(self) -> int:
        """Read some of the rest, including the padding of its last block; 0 once all is read."""
        waste = bytearray(io.DEFAULT_BUFFER_SIZE)
        if size := self.readinto(waste):
            return size
        size, self._padding = self._padding, 0
        return len(self._file.read(size))
