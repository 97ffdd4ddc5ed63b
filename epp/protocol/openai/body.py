"""A request's body: kept in the pieces in which it arrives, and read for routing.

What the reader declines to read piece by piece (`body_reader.py`) is read at the end
(`request_json.py`), with the same result; of a body that is too long for that, the model and its
like are known, and no prompt. What a body is answered with is known elsewhere.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from epp.errors import MalformedRequest
from epp.model.request import Api, Prompt
from epp.protocol.openai.apis import FRAMED, NAMELESS
from epp.protocol.openai.body_reader import BodyReader, Found
from epp.protocol.openai.model_rewrite import Span, model_spans, priority_spans
from epp.protocol.openai.request_json import LONGEST_PROMPT, Parsed, check_model, parse_request
from epp.protocol.openai.token_prompts import limit_of, salt_of, with_media

_text = msgspec.json.Decoder(str).decode
_perhaps_text = msgspec.json.Decoder(str | None).decode
_perhaps_number: Callable[[bytes], int | None] = msgspec.json.Decoder(int | None).decode
_perhaps_flag = msgspec.json.Decoder(bool | None).decode


_SGLANG: Final = Api.SGLANG_GENERATE
_FRAMED: Final = frozenset([api.value for api in FRAMED])
_NAMELESS: Final = frozenset([api.value for api in NAMELESS])
_LONG_BYTES = 1 << 20
"""A body over this is never read in one piece while the event loop waits."""


class Body:
    """One body of an API; `feed` takes its bytes. That of no known API is only kept.

    Bodies over gRPC (`FRAMED`) are read at the end. While `unread`, `read_on` is to be called: each
    call takes a few milliseconds.
    """

    __slots__ = ("_api", "_framed", "_inner", "_message", "_reader", "feed")

    def __init__(self, api: Api, reader: type[BodyReader] = BodyReader) -> None:
        self._api = api
        name = api.value  # an enumeration's hash takes longer
        self._framed = name in _FRAMED
        self._reader = reader(name, LONGEST_PROMPT, name in _NAMELESS)
        self._message = b""  # of a frame, with the body
        self._inner: Body | None = None  # ... that it holds
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
        if self._framed:
            return self._parse_frame()
        while reader.unread:
            reader.read_on()
        found = reader.finish(whole)
        if found is not None:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                parsed = _parsed(self._api, found, multimodal=reader.multimodal)
                check_model(self._api, parsed.model)
                return parsed
        if sum(map(len, reader.pieces)) > _LONG_BYTES:
            outline = found or reader.outline()
            if outline is not None:
                return _outlined(self._api, outline)
            if reader.broken_at >= 0:
                raise MalformedRequest(f"the body is not valid JSON (byte {reader.broken_at})")
        return parse_request(self._api, self.whole())

    def _parse_frame(self) -> Parsed:
        from epp.protocol.openai import grpc_body  # noqa: PLC0415 (generated code is slow to load)

        message = grpc_body.message_of(self.whole())
        if message is None:
            return grpc_body.UNREAD
        if self._api not in grpc_body.VERTEX:
            return grpc_body.parse_generate(message)
        self._message, self._inner = message, Body(Api.RAW_PREDICT)
        self._inner.feed(grpc_body.json_of(message))
        return self._inner.parse()

    def rewritten(self, name: str, priority: int | None = None) -> list[bytes]:
        """Return the body, once it was parsed, with another model's name and priority.

        An empty `name` leaves the model, None the priority; nothing else changes. What the body
        lacks is put before everything else. What holds neither, vLLM's messages over gRPC, stays
        as it is.
        """
        if self._framed:
            return self._rewritten_frame(name, priority)
        edits: list[tuple[Span, bytes]] = []
        if name:
            edits += self._edits(self._reader.model, model_spans, "model", json.dumps(name))
        if priority is not None:
            span = self._reader.priority
            edits += self._edits(span, priority_spans, "priority", str(priority))
        pieces: Sequence[bytes] = self.pieces
        done: list[bytes] = []
        at = 0
        for (start, end), text in sorted(edits):
            before, rest = _split(pieces, start - at)
            _, pieces = _split(rest, end - start)
            done += [*before, text]
            at = end
        return [*done, *pieces]

    def _edits(
        self, span: Span | None, find: Callable[[bytes], list[Span]], key: str, value: str
    ) -> list[tuple[Span, bytes]]:
        """Return what replaces a field, or adds it where the body has none.

        Where the reader does not know the place of a field, it is looked for in the whole body.
        """
        spans = find(self.whole()) if span is None else [span] if span[0] >= 0 else []
        if spans:
            return [(each, value.encode()) for each in spans]
        at = self._start()
        return [((at, at), f'"{key}":{value},'.encode())]

    def _start(self) -> int:
        """Return where the first member of the body's object begins, or the object's end."""
        at = 0
        for piece in self.pieces:
            brace = piece.find(b"{")
            if brace >= 0:
                return at + brace + 1
            at += len(piece)
        return at

    def _rewritten_frame(self, name: str, priority: int | None) -> list[bytes]:
        from epp.protocol.openai import grpc_body  # noqa: PLC0415 (as above)

        if self._inner is None:
            return self.pieces
        data = b"".join(self._inner.rewritten(name, priority))
        return [grpc_body.framed(grpc_body.with_json(self._message, data))]


def _outlined(api: Api, found: Found) -> Parsed:
    try:
        parsed = _parsed(api, found)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"the body does not fit its path: {error}") from None
    check_model(api, parsed.model)
    return parsed


def _parsed(api: Api, found: Found, *, multimodal: bool = False) -> Parsed:
    """Read what was found as JSON. Raises what msgspec does."""
    model, stream, salt, user, total, completion, output, sampling, features, prompts = found
    limits = _number(completion), _number(total), _number(output)
    made = tuple([Prompt(data, exact, marks or (), multimodal) for data, exact, marks in prompts])
    if features:
        made = with_media(made, features)
        multimodal = multimodal or any(prompt.multimodal for prompt in made)
    if model == b"null" and api in NAMELESS:
        model = b""
    salt_text = salt_of(salt) if api is _SGLANG else (salt and _perhaps_text(salt)) or ""
    return Parsed(
        model=_text(model) if model else "",
        prompts=made,
        stream=bool(stream and _perhaps_flag(stream)),
        max_tokens=limits[0]
        or limits[1]
        or limits[2]
        or (limit_of(sampling) if sampling else None),
        cache_salt=salt_text,
        user=(user and _perhaps_text(user)) or "",
        multimodal=multimodal,
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
