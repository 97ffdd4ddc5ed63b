"""An answer to a chat as its client receives it: an event stream, or one document."""

import time

import msgspec

from epp.model.request import Usage
from epp.protocol.bodies.usage import merge_usage

_DATA = b"data: "


class _Text(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Text = msgspec.field(default_factory=_Text)
    message: _Text = msgspec.field(default_factory=_Text)


class _Document(msgspec.Struct):
    choices: tuple[_Choice, ...] = ()
    usage: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Document).decode


class Answer:
    """An answer, as far as received: `text`, its number of `chunks`, and the server's `usage`.

    Its first text came at `first_at` (monotonic seconds), None before.
    """

    def __init__(self) -> None:
        self.text = ""
        self.chunks = 0
        self.first_at: float | None = None
        self.usage = Usage()

    def feed(self, line: bytes) -> None:
        """Read one line of the event stream. Raises `msgspec.MsgspecError`."""
        if line.startswith(_DATA + b"{"):
            self.add(line[len(_DATA) :])

    def add(self, document: bytes) -> None:
        """Read a whole answer, or one event of a stream. Raises `msgspec.MsgspecError`."""
        found = _decode(document)
        for choice in found.choices:
            text = choice.delta.content or choice.message.content
            if text:
                self.first_at = self.first_at or time.monotonic()
                self.text += text
                self.chunks += 1
        self.usage = merge_usage(self.usage, [bytes(found.usage)]) or self.usage
