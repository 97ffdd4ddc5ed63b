"""A metrics page in Prometheus' text format, of which few families are wanted.

A page of vLLM holds some seventy families in 20 to 60 KB, of which ten matter, and it is read
once a second for every server: the lines wanted are found by substring search, from where they
stood on the page before, and nothing else is looked at. Knows no engine and no transport.
"""

import functools
import math
import re
from collections.abc import Mapping

Sample = tuple[bytes, float]
"""Raw text between the braces (empty without any), and the value (NaN where it is no number)."""

_QUOTED = rb'(?:[^"\\\n]++|\\.)*+'
_LABEL = re.compile(rb'([A-Za-z_]\w*+)\s*+=\s*+"(' + _QUOTED + rb')"')
_REST = re.compile(rb'(?:\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+)\})?[ \t]+([^ \t\r\n]+)[^\n]*\n')
_ESCAPE = re.compile(rb"\\(.)")
_AFTER_NAME = frozenset(b"{ \t")
_ABSENT_PAGES = 8
_NUMBERS_GROW = 256
"""Bytes by which a line may stand earlier than on the page before without a search from the top."""


class Page:
    """One page. `places`, kept by the caller from page to page, says where families stand."""

    def __init__(self, text: bytes, places: dict[bytes, int] | None = None) -> None:
        self.text = text
        self._places = {} if places is None else places
        self._found: dict[bytes, list[Sample]] = {}

    def __contains__(self, start: bytes) -> bool:
        """Whether any line starts with this."""
        return self.text.startswith(start) or b"\n" + start in self.text

    def samples(self, family: bytes) -> list[Sample]:
        """Give a family's samples, which the format keeps together, up to the first bad line."""
        found = self._found.get(family)
        if found is None:
            found = self._found[family] = self._read(family)
        return found

    def rare(self, family: bytes) -> list[Sample]:
        """Give the samples of a family that pages may lack: then every eighth page is searched."""
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
        """Find where the family's first sample starts; -1 where it has none."""
        start = self._near(family)
        if start < 0:
            start = 0 if self._starts(family, 0) else self._search(family, 0)
        self._places[family] = start if start >= 0 else -_ABSENT_PAGES
        return start

    def _near(self, family: bytes) -> int:
        """Look around where it was on the page before; -1 where its first sample is not there."""
        place = self._places.get(family, -1)
        if place <= _NUMBERS_GROW:
            return -1
        start = self._search(family, place - _NUMBERS_GROW)
        line_before = self.text.rfind(b"\n", 0, max(0, start - 1)) + 1
        return -1 if self._starts(family, line_before) else start

    def _search(self, family: bytes, start: int) -> int:
        needle = b"\n" + family
        found = self.text.find(needle, start)
        while found >= 0 and not self._starts(family, found + 1):
            found = self.text.find(needle, found + 1)
        return found + 1 if found >= 0 else -1

    def _starts(self, family: bytes, at: int) -> bool:
        """Whether a sample of exactly this family (not of one it is a prefix of) starts here."""
        end = at + len(family)
        text = self.text
        return text.startswith(family, at) and end < len(text) and text[end] in _AFTER_NAME


@functools.lru_cache(maxsize=8192)
def labels(raw: bytes) -> Mapping[bytes, bytes]:
    """Read the labels of a sample; most are the same on every page of every server."""
    return {name: _unescape(value) for name, value in _LABEL.findall(raw)}


def number(text: bytes) -> float:
    """Read a number of the exposition format; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _unescape(value: bytes) -> bytes:
    if b"\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], value)
