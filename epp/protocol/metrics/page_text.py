"""The text of a page of metrics, in Prometheus text format 0.0.4: only some families are parsed.

A page of vLLM has some seventy families in 20 to 60 KB, of which ten are read, once per second
and server. Their lines are found by substring search, near their offsets on the page before, and
are not parsed again if they are the same as there. Any pod writes what it likes: all that is done
here is linear in the bytes that it looks at, and what looks at many is an iterator that yields None
after some of them, so that its caller can pause.
"""

import math
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Final

Sample = tuple[bytes, bytes]
"""The text between the braces (empty without labels), and the value's."""

MAX_LINE_BYTES: Final = 8192
"""Longer samples are skipped; vLLM's longest, its configuration, has some 2 KB."""
_SAMPLES_BYTES: Final = 8 << 10
_SAMPLE_BYTES: Final = 64
"""Bytes of samples that are read before a pause, and those that each counts for beside its own."""
_SEARCHED_BYTES: Final = 32 << 10
"""Bytes that are searched for a name before a pause."""

_QUOTED: Final = rb'(?:[^"\\\n]++|\\.)*+'
# The look-behind makes it linear: without it each letter of a long word begins another attempt.
_LABEL: Final = re.compile(rb'(?<!\w)([A-Za-z_]\w*+)\s*+=\s*+"(' + _QUOTED + rb')"')
_REST: Final = re.compile(
    rb'(?:\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+)\})?[ \t]+([^ \t\r\n]+)[^\n]*\n'
)
_ESCAPE: Final = re.compile(rb"\\(.)")
_AFTER_NAME: Final = frozenset(b"{ \t")
_ABSENT_PAGES: Final = 8
"""An absent rare family is searched on one page of as many."""
_MAX_SHIFT: Final = 256
"""Bytes by which a line may have moved up since the page before and still be found there."""
_KEPT_BYTES: Final = 4 << 10
"""Bytes of a family's lines that are kept to be compared with those of the next page."""
_LONGEST_NUMBER: Final = 64
"""Bytes of a number; Go writes at most 24."""


class KnownLines:
    """Where the families of the page before were, and the lines of those that are short.

    `groups` have the line before a family's first sample too, after the newline before that, and
    the length up to the sample.
    """

    def __init__(self) -> None:
        self.places: dict[bytes, int] = {}
        self.groups: dict[bytes, tuple[int, bytes]] = {}


class PageText:
    """The text. `known` is kept by the caller for the next page.

    `long_lines` is whether a sample was skipped because its line is too long.
    """

    def __init__(self, text: bytes, known: KnownLines | None = None) -> None:
        known = known or KnownLines()
        self._text = text
        self._places, self._groups = known.places, known.groups
        self._compared: dict[bytes, bool] = {}
        self._moved = 0  # by how many bytes, since the page before, the lines that were found last
        self.long_lines = False

    def unchanged(self, family: bytes) -> bool:
        """Whether a family's lines are known to be those of the page before."""
        if family not in self._compared:
            self._compared[family] = self._is_unchanged(family)
        return self._compared[family]

    def kept(self, family: bytes) -> bool:
        """Whether a family that was read will be compared on the next page, or is not there."""
        return family in self._groups or self._places[family] < 0

    def _is_unchanged(self, family: bytes) -> bool:
        before = self._groups.get(family)
        if before is None:
            return False
        head, group = before
        place = self._places[family] - head
        found = max(0, place + self._moved)
        if not self._text.startswith(group, found):
            first = max(0, place - _MAX_SHIFT)
            found = self._text.find(group, first, first + 2 * _MAX_SHIFT + len(group))
        if found < 0 or self._starts(family, found + len(group)):
            del self._groups[family]
            return False
        self._moved = found - place
        self._places[family] = found + head
        return True

    def samples(self, family: bytes) -> Iterator[Sample | None]:
        """Yield a family's samples, up to the first malformed line, and None to pause."""
        # Text format 0.0.4, "Grouping and sorting": all lines of a metric are in one group.
        text, left, name = self._text, _SAMPLES_BYTES, len(family)
        self.unchanged(family)  # is found out now: what is kept is this page's from here on
        start = self._near(family)
        if start < 0:
            start = yield from self._first_line(family)
        self._places[family] = start if start >= 0 else -_ABSENT_PAGES
        first = end = start
        while start >= 0:
            end = text.find(b"\n", start, start + MAX_LINE_BYTES) + 1
            if end:
                line = _REST.match(text, start + name, end)
                if line is None:
                    return
                yield line[1] or b"", line[2]
                left -= _SAMPLE_BYTES + end - start
            elif end := text.find(b"\n", start) + 1:
                self.long_lines = True
                left -= MAX_LINE_BYTES
            else:
                return
            if left < 0:
                left = _SAMPLES_BYTES
                yield None
            start = end if self._starts(family, end) else -1
        self._keep(family, first, end)

    def _keep(self, family: bytes, first: int, end: int) -> None:
        """Keep a family's lines, from its first sample on, for the next page to compare."""
        start = self._text.rfind(b"\n", 0, first - 1) if first > 0 else -1
        if start >= 0 and end - start <= _KEPT_BYTES:
            self._groups[family] = first - start, self._text[start:end]

    def has_line(self, start: bytes) -> Generator[None, None, bool]:
        """Return whether any line starts with `start`."""
        if self._text.startswith(start):
            return True
        needle = b"\n" + start
        for at in range(0, len(self._text), _SEARCHED_BYTES):
            if self._text.find(needle, at, at + _SEARCHED_BYTES + len(start)) >= 0:
                return True
            yield None
        return False

    def rare(self, family: bytes) -> bool:
        """Whether to look for a family; while pages lack it, that is so on each eighth page."""
        place = self._places.get(family, 0)
        if place >= -1:
            return True
        self._places[family] = place + 1
        return False

    def _near(self, family: bytes) -> int:
        """Return the offset of the family's first sample if it is near the one before; else -1."""
        place = self._places.get(family, -1)
        if place <= _MAX_SHIFT:
            return -1
        start = self._search(family, place - _MAX_SHIFT)
        line_before = self._text.rfind(b"\n", 0, max(0, start - 1)) + 1
        return -1 if self._starts(family, line_before) else start

    def _first_line(self, family: bytes) -> Generator[None, None, int]:
        """Return the offset of the family's first sample; -1 if it has none."""
        if self._starts(family, 0):
            return 0
        for part in range(0, len(self._text), _SEARCHED_BYTES):
            if (found := self._search(family, part)) >= 0:
                return found
            yield None
        return -1

    def _search(self, family: bytes, start: int) -> int:
        """Return the first sample after a newline in `_SEARCHED_BYTES` from `start`, or -1."""
        text, needle = self._text, b"\n" + family
        end = start + _SEARCHED_BYTES + len(family)
        found = text.find(needle, start, end)
        while found >= 0 and not self._starts(family, found + 1):
            found = text.find(needle, found + 1, end)
        return found + 1 if found >= 0 else -1

    def _starts(self, family: bytes, at: int) -> bool:
        """Whether a sample of this family, not of one with a longer name, starts at `at`."""
        end = at + len(family)
        text = self._text
        return text.startswith(family, at) and end < len(text) and text[end] in _AFTER_NAME


def labels(raw: bytes, wanted: frozenset[bytes]) -> Mapping[bytes, bytes]:
    """Return those labels of a sample that are wanted."""
    return {name: _unescape(value) for name, value in _LABEL.findall(raw) if name in wanted}


def number(text: bytes) -> float:
    """Return a number of the text format, which writes them as Go does; NaN if it is not one."""
    try:
        return float(text) if len(text) <= _LONGEST_NUMBER else math.nan
    except ValueError:
        return math.nan


def _unescape(value: bytes) -> bytes:
    # Text format 0.0.4: a label value escapes backslash, quote and newline.
    if b"\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], value)
