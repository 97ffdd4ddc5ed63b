"""Looks for one key in bytes that pass by; the twin of `epp.native.watch`."""

import re
from abc import ABC, abstractmethod

KEY = b'"usage"'
_OBJECT = re.compile(rb'"usage"\s*(:\s*)?(\{|\Z)')


class Watch(ABC):
    """Who derives from it is shown bytes in which the key `"usage"` has, or may get, an object.

    `rest` is what was seen and may be part of that; it is shown again before what comes next.
    While `eager`, everything is shown.
    """

    __slots__ = ("eager", "rest")

    def __init__(self) -> None:
        self.rest = b""
        self.eager = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        data = self.rest + chunk if self.rest else chunk
        if self.eager or (KEY in data and _OBJECT.search(data)):
            self.seen(data)
        else:
            self.rest = b"" if data.endswith(b"\n") else data[-len(KEY) + 1 :]

    @abstractmethod
    def seen(self, data: bytes) -> None:
        """Look at what is shown, and set `rest` and `eager` anew."""
