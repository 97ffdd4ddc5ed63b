"""A request's body: kept in the pieces in which it arrives, and read for routing.

Bodies that the reader declines to read piece by piece (`body_reader.py`) are read at the end
(`request_json.py`), with the same result; if one is too long for that, only the fields outside of
the prompts are read.
"""

import json
from collections.abc import Sequence
from typing import Final

import msgspec
from mypy_extensions import mypyc_attr

from epp.errors import MalformedRequest
from epp.model.request import Api, Prompt
from epp.protocol.bodies.apis import FRAMED, NAMELESS, VERTEX_FRAMED
from epp.protocol.bodies.body_reader import BodyData, BodyReader, Found
from epp.protocol.bodies.coercion import (
    flag_of,
    limit_of,
    model_of,
    n_of,
    salt_of,
    skips_reading,
)
from epp.protocol.bodies.json_tokens import Path, Span, members
from epp.protocol.bodies.parsed import UNREAD, Parsed
from epp.protocol.bodies.request_json import LONGEST_PROMPT, parse_request
from epp.protocol.bodies.token_prompts import with_media

_NAMES: Final = {api: api.value for api in Api}
_MODEL: Final[Path] = (b"model",)
_PRIORITY: Final[Path] = (b"priority",)
_NOWHERE: Final[Span] = (-1, -1)
_FIELDS: Final = frozenset(((), _MODEL, _PRIORITY))
_LONG_BYTES: Final = 1 << 20
"""A body over this is never read in one piece while the event loop waits."""


@mypyc_attr(free_list_len=1)
class Body:
    """One body of an API; `feed` takes its bytes. A body of an unknown API is only kept.

    Bodies over gRPC (`FRAMED`) are read at the end. While it is `unread`, call `read_on`, which
    takes a few milliseconds each time.
    """

    def __init__(self, api: Api, reader: type[BodyReader] = BodyReader) -> None:
        self._api = api
        self._framed = api in FRAMED
        self._reader = reader(_NAMES[api], LONGEST_PROMPT, api in NAMELESS)
        self._message = b""  # of a frame, with the body
        self._inner: Body | None = None  # ... that it holds

    def feed(self, data: BodyData) -> None:
        """Take the next bytes."""
        self._reader.feed(data)

    @property
    def pieces(self) -> list[BodyData]:
        """The body as it came."""
        return self._reader.pieces

    @property
    def unread(self) -> bool:
        """Whether something that was fed is still to be read."""
        return self._reader.unread > 0

    def read_on(self) -> None:
        """Read the next part of the body."""
        self._reader.read_on()

    @property
    def enough(self) -> bool:
        """Whether `parse` would return the same for a longer body, as far as routing needs it."""
        return self._reader.enough

    def whole(self) -> bytes:
        """Return the body in one piece."""
        return b"".join(self._reader.pieces)

    def parse(self, *, whole: bool = True) -> Parsed:
        """Read the body, all or `enough` of it. Raises `MalformedRequest`, like `parse_request`."""
        reader = self._reader
        if self._framed:
            return self._parse_frame()
        while reader.unread:
            reader.read_on()
        found = reader.finish(whole)
        if found is not None:
            try:
                return _parsed(self._api, found, multimodal=reader.multimodal)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                pass  # as JSON it may be read all the same
        if sum(map(len, reader.pieces)) > _LONG_BYTES:
            outline = found or reader.outline()
            if outline is not None:
                return _outlined(self._api, outline)
            if reader.broken_at >= 0:
                raise MalformedRequest(f"the body is not valid JSON (byte {reader.broken_at})")
        return parse_request(self._api, self.whole())

    def _parse_frame(self) -> Parsed:
        from epp.protocol.bodies import grpc_body  # noqa: PLC0415 (generated code is slow to load)

        message = grpc_body.message_of(self.whole())
        if message is None:
            return UNREAD
        if self._api not in VERTEX_FRAMED:
            return grpc_body.parse_generate(message)
        self._message, self._inner = message, Body(Api.RAW_PREDICT)
        self._inner.feed(grpc_body.json_of(message))
        return self._inner.parse()

    def rewritten(self, name: str, priority: int | None = None) -> list[BodyData]:
        """Return the body, once all of it was parsed, with another model's name and priority.

        An empty `name` leaves the model, None the priority; nothing else changes. If a key comes
        twice, in any spelling, the last value is replaced, which parsers of JSON use. A missing
        field is appended, and so is one that cannot be found in a long, unusual body. A body that
        has neither, such as vLLM's messages over gRPC, stays as it is.
        """
        if self._framed:
            return self._rewritten_frame(name, priority)
        values: list[tuple[Path, bytes]] = []
        if name:
            values.append((_MODEL, json.dumps(name).encode()))
        if priority is not None:
            values.append((_PRIORITY, str(priority).encode()))
        return _edited(self.pieces, self._edits(values))

    def _edits(self, values: Sequence[tuple[Path, bytes]]) -> list[tuple[Span, bytes]]:
        """Return the edits that replace fields, or add those without a known place, in order."""
        places = self._places()
        edits: list[tuple[Span, bytes]] = []
        added = b""
        for path, value in values:
            place = places.get(path, _NOWHERE)
            if place != _NOWHERE:
                edits.append((place, value))
            else:
                added += b',"%s":%s' % (path[0], value)
        if added:
            end, follows = self._end()
            edits.append(((end, end), added if follows else added[1:]))
        return sorted(edits)

    def _places(self) -> dict[Path, Span]:
        """Return the position of each field's last value, without fields whose position is unknown.

        If the reader does not know a position, the whole body is searched.
        """
        if (places := self._reader.places) is not None:
            return {_MODEL: places[0], _PRIORITY: places[1]}
        found = dict(members(self.whole(), _FIELDS))
        return found if () in found else {}

    def _end(self) -> tuple[int, bool]:
        """Return where the body's object ends, and whether it has members."""
        at, end = sum(map(len, self.pieces)), -1
        for piece in reversed(self.pieces):
            at -= len(piece)
            kept = bytes(piece).rstrip()
            if kept and end < 0:
                end = at + len(kept) - 1
                kept = kept[:-1].rstrip()
            if kept:
                return end, not kept.endswith(b"{")
        return 0, False

    def _rewritten_frame(self, name: str, priority: int | None) -> list[BodyData]:
        from epp.protocol.bodies import grpc_body  # noqa: PLC0415 (as above)

        if self._inner is None:
            return self.pieces
        data = b"".join(self._inner.rewritten(name, priority))
        return [grpc_body.framed(grpc_body.with_json(self._message, data))]


def _edited(pieces: Sequence[BodyData], edits: Sequence[tuple[Span, bytes]]) -> list[BodyData]:
    done: list[BodyData] = []
    at = 0
    for (start, end), text in edits:
        before, rest = _split(pieces, start - at)
        _, pieces = _split(rest, end - start)
        done += [*before, text]
        at = end
    return [*done, *pieces]


def _outlined(api: Api, found: Found) -> Parsed:
    try:
        return _parsed(api, found)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"the body does not fit its path: {error}") from None


def _parsed(api: Api, found: Found, *, multimodal: bool = False) -> Parsed:
    """Decode the JSON of the fields found. Raises `MalformedRequest`, and msgspec's errors."""
    (
        model,
        stream,
        salt,
        total,
        completion,
        output,
        n,
        sampled,
        new,
        samples,
        hashes,
        places,
        logprobs,
        prompts,
    ) = found
    limited = completion or total or output or sampled or new
    made = tuple([Prompt(data, exact, marks or (), multimodal) for data, exact, marks in prompts])
    if places:
        made = with_media(made, hashes, places)
        multimodal = multimodal or any(prompt.multimodal for prompt in made)
    return Parsed(
        model=model_of(model),
        prompts=made,
        stream=bool(stream) and flag_of(stream),
        max_tokens=limit_of(completion, total, output, sampled, new) if limited else None,
        n=n_of(n, samples) if n or samples else 1,
        cache_salt=salt_of(salt) if salt else "",
        multimodal=multimodal,
        skip_reading_prefix_cache=bool(logprobs) and skips_reading(api, *logprobs),
    )


def _split(pieces: Sequence[BodyData], at: int) -> tuple[list[BodyData], list[BodyData]]:
    """Cut pieces in two behind their first `at` bytes."""
    for number, piece in enumerate(pieces):
        if at < len(piece):
            return [*pieces[:number], piece[:at]], [piece[at:], *pieces[number + 1 :]]
        at -= len(piece)
    return list(pieces), []
