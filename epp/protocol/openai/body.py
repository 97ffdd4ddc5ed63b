"""A request's body: kept in the pieces in which it arrives, and read for routing.

What the reader declines to read piece by piece (`body_reader.py`) is read at the end
(`request_json.py`), with the same result; of a body that is too long for that, the model and its
like are known, and no prompt. What a body is answered with is known elsewhere.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from epp.errors import MalformedRequest
from epp.model.request import Api, Prompt
from epp.protocol.openai.body_reader import BodyReader, Found
from epp.protocol.openai.model_rewrite import replace_model
from epp.protocol.openai.request_json import LONGEST_PROMPT, Parsed, check_model, parse_request

_text = msgspec.json.Decoder(str).decode
_perhaps_text = msgspec.json.Decoder(str | None).decode
_perhaps_number: Callable[[bytes], int | None] = msgspec.json.Decoder(int | None).decode
_perhaps_flag = msgspec.json.Decoder(bool | None).decode


_LONG_BYTES = 1 << 20
"""A body over this is never read in one piece while the event loop waits."""


class Body:
    """One body of an API; `feed` takes its bytes. That of no known API is only kept.

    While `unread`, `read_on` is to be called: each call takes a few milliseconds.
    """

    __slots__ = ("_api", "_reader", "feed")

    def __init__(self, api: Api, reader: type[BodyReader] = BodyReader) -> None:
        self._api = api
        self._reader = reader(api.value, LONGEST_PROMPT)
        self.feed = self._reader.feed

    @property
    def pieces(self) -> list[bytes]:
        """The body as it came."""
        return self._reader.pieces

    @property
    def unread(self) -> bool:
        """Whether something that was fed is still to be read."""
        return self._reader.unread > 0

    def read_on(self) -> None:
        """Read the next part of what was fed."""
        self._reader.read_on()

    @property
    def enough(self) -> bool:
        """Whether `parse` would say the same of a longer body, as far as routing needs it."""
        return self._reader.enough

    def whole(self) -> bytes:
        """Return the body in one piece."""
        return b"".join(self._reader.pieces)

    def parse(self, *, whole: bool = True) -> Parsed:
        """Read what was fed, all of the body or `enough` of it.

        Raises `MalformedRequest`, as `parse_request` does.
        """
        reader = self._reader
        while reader.unread:
            reader.read_on()
        found = reader.finish(whole)
        if found is not None:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                parsed = _parsed(found)
                check_model(parsed.model)
                return parsed
        if sum(map(len, reader.pieces)) > _LONG_BYTES:
            outline = found or reader.outline()
            if outline is not None:
                return _outlined(outline)
            if reader.broken_at >= 0:
                raise MalformedRequest(f"the body is not valid JSON (byte {reader.broken_at})")
        return parse_request(self._api, self.whole())

    def renamed(self, name: str) -> list[bytes]:
        """Return the body, once it was parsed, with another model's name in the place of its own.

        Nothing else changes. Where the reader does not know the place, it is looked for as
        `replace_model` does.
        """
        span = self._reader.model
        if span is None:
            return [replace_model(self.whole(), name)]
        start, end = span
        before, rest = _split(self.pieces, start)
        _, after = _split(rest, end - start)
        return [*before, json.dumps(name).encode(), *after]


def _outlined(found: Found) -> Parsed:
    try:
        parsed = _parsed(found)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"the body does not fit its path: {error}") from None
    check_model(parsed.model)
    return parsed


def _parsed(found: Found) -> Parsed:
    """Read what was found as JSON. Raises what msgspec does."""
    model, stream, salt, user, total, completion, output, prompts = found
    limits = _number(completion), _number(total), _number(output)
    return Parsed(
        model=_text(model) if model else "",
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
