"""A page of metrics in Prometheus text format 0.0.4, of which only some families are parsed.

A page of vLLM has some seventy families in 20 to 60 KB, of which ten are read, once per second
and server. Their lines are found by substring search, near their offsets on the page before.
"""

import functools
import math
import re
from collections.abc import Mapping

Sample = tuple[bytes, float]
"""The text between the braces (empty without labels), and the value (NaN if it is no number)."""

_QUOTED = rb'(?:[^"\\\n]++|\\.)*+'
_LABEL = re.compile(rb'([A-Za-z_]\w*+)\s*+=\s*+"(' + _QUOTED + rb')"')
_REST = re.compile(rb'(?:\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+)\})?[ \t]+([^ \t\r\n]+)[^\n]*\n')
_ESCAPE = re.compile(rb"\\(.)")
_AFTER_NAME = frozenset(b"{ \t")
_ABSENT_PAGES = 8
"""An absent rare family is searched on one page of as many."""
_MAX_SHIFT = 256
"""Bytes by which a line may have moved up since the page before and still be found there."""


class Page:
    """One page. `places`, kept by the caller for the next page, has the offsets of families."""

    def __init__(self, text: bytes, places: dict[bytes, int] | None = None) -> None:
        self.text = text
        self._places = {} if places is None else places
        self._found: dict[bytes, list[Sample]] = {}

    def __contains__(self, start: bytes) -> bool:
        """Whether any line starts with `start`."""
        return self.text.startswith(start) or b"\n" + start in self.text

    def samples(self, family: bytes) -> list[Sample]:
        """Return a family's samples, up to the first malformed line."""
        # Text format 0.0.4, "Grouping and sorting": all lines of a metric are in one group.
        found = self._found.get(family)
        if found is None:
            found = self._found[family] = self._read(family)
        return found

    def rare(self, family: bytes) -> list[Sample]:
        """Return a family's samples; while pages lack it, only each eighth page is searched."""
        place = self._places.get(family, 0)
        if place >= -1 or family in self._found:
            return self.samples(family)
        self._places[family] = place + 1
        return []

    def _read(self, family: bytes) -> list[Sample]:
        found: list[Sample] = []
        start = self._first_line(family)
        while start >= 0:
            line = _REST.match(self.text, start + len(family))
            if line is None:
                break
            found.append((line[1] or b"", number(line[2])))
            start = line.end() if self._starts(family, line.end()) else -1
        return found

    def _first_line(self, family: bytes) -> int:
        """Return the offset of the family's first sample; -1 if it has none."""
        start = self._near(family)
        if start < 0:
            start = 0 if self._starts(family, 0) else self._search(family, 0)
        self._places[family] = start if start >= 0 else -_ABSENT_PAGES
        return start

    def _near(self, family: bytes) -> int:
        """Return that offset if it is near the one of the page before; else -1."""
        place = self._places.get(family, -1)
        if place <= _MAX_SHIFT:
            return -1
        start = self._search(family, place - _MAX_SHIFT)
        line_before = self.text.rfind(b"\n", 0, max(0, start - 1)) + 1
        return -1 if self._starts(family, line_before) else start

    def _search(self, family: bytes, start: int) -> int:
        needle = b"\n" + family
        found = self.text.find(needle, start)
        while found >= 0 and not self._starts(family, found + 1):
            found = self.text.find(needle, found + 1)
        return found + 1 if found >= 0 else -1

    def _starts(self, family: bytes, at: int) -> bool:
        """Whether a sample of this family, not of one with a longer name, starts at `at`."""
        end = at + len(family)
        text = self.text
        return text.startswith(family, at) and end < len(text) and text[end] in _AFTER_NAME


@functools.lru_cache(maxsize=8192)
def labels(raw: bytes) -> Mapping[bytes, bytes]:
    """Return the labels of a sample; cached, as most are the same on every page."""
    return {name: _unescape(value) for name, value in _LABEL.findall(raw)}


def number(text: bytes) -> float:
    """Return a number of the text format, which writes them as Go does; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _unescape(value: bytes) -> bytes:
    # Text format 0.0.4: a label value escapes backslash, quote and newline.
    if b"\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], value)
