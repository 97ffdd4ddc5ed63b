"""A request's body as it arrives: kept in the pieces it came in, and read for routing.

The compiled reader reads every piece as it comes. Without it, and where it declines, the body is
read at the end (`request_json.py`), with the same result. This file does not know what a body is
answered with.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from epp.model.request import Api, Prompt
from epp.protocol.openai.model_rewrite import replace_model
from epp.protocol.openai.request_json import LONGEST_PROMPT, Parsed, parse_request

_Prompts = list[tuple[bytes, bool, list[int]]]
_Found = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, _Prompts]


class Reader(Protocol):
    """Reads a body of an API, given by its value; prompts end after `longest` bytes."""

    def __init__(self, api: str, longest: int) -> None: ...

    @property
    def pieces(self) -> list[bytes]:
        """What was fed, in order."""

    @property
    def model(self) -> tuple[int, int] | None:
        """Where the model's name lies, quotes included; None where that is not known."""

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""

    def finish(self) -> _Found | None:
        """Say what was found (see the compiled reader), or None: it is read at the end."""


class Keeper:
    """Keeps a body and reads nothing."""

    model = None

    def __init__(self, api: str, longest: int) -> None:
        self.pieces: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        """Keep the next bytes."""
        self.pieces.append(piece)

    def finish(self) -> None:
        """Leave it to be read at the end."""


READER: type[Reader] = Keeper
with suppress(ImportError):
    from epp.native.body import BodyReader

    READER = BodyReader

_text = msgspec.json.Decoder(str).decode
_perhaps_text = msgspec.json.Decoder(str | None).decode
_perhaps_number: Callable[[bytes], int | None] = msgspec.json.Decoder(int | None).decode
_perhaps_flag = msgspec.json.Decoder(bool | None).decode

# Looked up once: docs/adr/0013-compiled.md says why.
_OTHER: Final = Api.OTHER


class Body:
    """One body of an API; `feed` takes its bytes. That of no known API is only kept."""

    __slots__ = ("_api", "_reader", "feed")

    def __init__(self, api: Api, reader: type[Reader] = READER) -> None:
        self._api = api
        kind: type[Reader] = Keeper if api is _OTHER else reader
        self._reader = kind(api.value, LONGEST_PROMPT)
        self.feed = self._reader.feed

    @property
    def pieces(self) -> list[bytes]:
        """The body as it came."""
        return self._reader.pieces

    def whole(self) -> bytes:
        """Return the body in one piece."""
        return b"".join(self._reader.pieces)

    def parse(self) -> Parsed:
        """Read what was fed. Raises `MalformedRequest`, as `parse_request` does."""
        found = self._reader.finish()
        if found is not None:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                parsed = _parsed(found)
                if parsed.model:
                    return parsed
        return parse_request(self._api, self.whole())

    def renamed(self, name: str) -> list[bytes]:
        """Return the body, once it was parsed, with another model's name in the place of its own.

        Nothing else changes.
        """
        span = self._reader.model
        if span is None:
            return [replace_model(self.whole(), name)]
        start, end = span
        before, rest = _split(self.pieces, start)
        _, after = _split(rest, end - start)
        return [*before, json.dumps(name).encode(), *after]


def _parsed(found: _Found) -> Parsed:
    """Read what was found as JSON. Raises what msgspec does."""
    model, stream, salt, user, total, completion, output, prompts = found
    limits = _number(completion), _number(total), _number(output)
    return Parsed(
        model=_text(model),
        prompts=tuple([Prompt(data, exact, marks or ()) for data, exact, marks in prompts]),
        stream=bool(stream and _perhaps_flag(stream)),
        max_tokens=limits[0] or limits[1] or limits[2],
        cache_salt=(salt and _perhaps_text(salt)) or "",
        user=(user and _perhaps_text(user)) or "",
    )


def _number(raw: bytes) -> int | None:
    return _perhaps_number(raw) if raw else None


def _split(pieces: Sequence[bytes], at: int) -> tuple[list[bytes], list[bytes]]:
    """Cut pieces in two behind their first `at` bytes."""
    for number, piece in enumerate(pieces):
        if at < len(piece):
            return [*pieces[:number], piece[:at]], [piece[at:], *pieces[number + 1 :]]
        at -= len(piece)
    return list(pieces), []
