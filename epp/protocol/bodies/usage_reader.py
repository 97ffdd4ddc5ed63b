"""Readers that find the usage in a response's body as it passes, by API and content type."""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Protocol

import msgspec

from epp.model.request import Api
from epp.protocol.bodies.apis import FRAMED, VERTEX_FRAMED
from epp.protocol.bodies.coercion import MAX_TOKENS
from epp.protocol.bodies.object_scanner import ObjectScanner

_JSON: Final = "application/json"
_GRPC: Final = "application/grpc"
_META: Final = b'"meta_info"'
_META_BEGINS: Final = re.compile(rb'"meta_info"\s*:\s*')
_LONGEST_META: Final = 64 << 10
_INDEX: Final = re.compile(r'\s*,\s*"index"\s*:')
"""What follows `meta_info` if it is of one of several answers (SGLang `_handle_batch_request`)."""

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class ReportedDetails(msgspec.Struct):
    """What a server reports of the tokens of a prompt."""

    cached_tokens: _Tokens | None = None


class ReportedUsage(msgspec.Struct):
    """The usage as servers report it: names of OpenAI's APIs, and of Anthropic's."""

    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    input_tokens: _Tokens | None = None
    output_tokens: _Tokens | None = None
    prompt_tokens_details: ReportedDetails | None = None
    input_tokens_details: ReportedDetails | None = None
    cache_read_input_tokens: _Tokens | None = None
    cache_creation_input_tokens: _Tokens | None = None


class UsageReader(Protocol):
    """Takes a body in any pieces and returns the usage found, as JSON objects in OpenAI's form.

    No input raises.
    """

    def feed(self, chunk: bytes, /) -> Sequence[bytes]:
        """Take the next bytes; return the usage found in them."""

    def end(self) -> Sequence[bytes]:
        """Return the usage that only the end of the body completes."""


def usage_reader(api: Api, content_type: str, *, streaming: bool) -> UsageReader | None:
    """Return a reader that looks for usage only where a body of this API may have it.

    `content_type` is in lower case; None for one without usage. Not for streams whose events have
    usage at their top level only: those have a reader of their own.
    """
    if content_type.startswith(_GRPC):
        return FramedUsage(api) if api in FRAMED else None
    if not streaming and not content_type.startswith(_JSON):
        return None
    if api is Api.SGLANG_GENERATE:
        return MetaInfoUsage()
    if not streaming:
        return ObjectScanner()
    # Responses API, event `response.completed`: `response.usage`; Anthropic Messages API, event
    # `message_start`: `message.usage`.
    return ObjectScanner(2, True)  # noqa: FBT003 (`lines`)


class MetaInfoUsage:
    """The usage in SGLang's `meta_info`: every event has one, and the last one counts.

    Several answers, in a list or by turns in a stream, have no total, so their usage is unknown.
    """

    __slots__ = ("_held", "_several")

    def __init__(self) -> None:
        self._held = b""
        self._several: bool | None = None

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Take the next bytes."""
        if self._several is None and chunk:
            self._several = chunk.lstrip()[:1] == b"["
        data = self._held + chunk
        at = data.rfind(_META)
        if at < 0:
            self._held = data[1 - len(_META) :]
        else:
            self._held = data[at : at + _LONGEST_META]
        return ()

    def end(self) -> Sequence[bytes]:
        """Return the usage of the last event."""
        begin = _META_BEGINS.match(self._held)
        if begin is None or self._several:
            return ()
        try:
            text = self._held[begin.end() :].decode(errors="replace")
            meta, end = json.JSONDecoder().raw_decode(text)
            found = msgspec.convert(meta, _MetaInfo)
        except (ValueError, RecursionError):
            return ()
        return () if _INDEX.match(text, end) else (openai_usage(found),)


class _MetaInfo(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


def openai_usage(found: Any) -> bytes:  # noqa: ANN401 (protobuf's message, or a struct)
    """Return an engine's own counts of tokens as OpenAI's usage."""
    return msgspec.json.encode(
        {
            "prompt_tokens": found.prompt_tokens,
            "completion_tokens": found.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": found.cached_tokens},
        }
    )


class FramedUsage:
    """The usage in gRPC messages: in the last one, or in the body that they carry together."""

    __slots__ = ("_api", "_frames", "_last", "_within")

    def __init__(self, api: Api) -> None:
        from epp.protocol.bodies.grpc_body import Frames  # noqa: PLC0415 (generated code is slow to load)

        self._api = api
        self._frames = Frames()
        self._last = b""
        self._within: ObjectScanner | None = None

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Take the next bytes; return the usage found in them."""
        found: list[bytes] = []
        for message, is_message in self._frames.feed(chunk):
            if not is_message:
                continue
            if self._api in VERTEX_FRAMED:
                found += self._feed_within(message)
            else:
                self._last = message
        return found

    @property
    def ended(self) -> bool:
        """Whether the answer's last message has come; for Vertex AI's that is not known."""
        from epp.protocol.bodies.grpc_body import is_last  # noqa: PLC0415 (as above)

        return bool(self._last) and is_last(self._api, self._last)

    def _feed_within(self, message: bytes) -> Sequence[bytes]:
        from epp.protocol.bodies.grpc_body import answer_of  # noqa: PLC0415 (as above)

        data = answer_of(message)
        if not data:
            return ()
        if self._within is None:
            is_json = data.lstrip()[:1] == b"{"
            self._within = ObjectScanner() if is_json else ObjectScanner(2, True)  # noqa: FBT003
        return self._within.feed(data)

    def end(self) -> Sequence[bytes]:
        """Return the usage that only the end of the body completes."""
        from epp.protocol.bodies.grpc_body import usage_of  # noqa: PLC0415 (as above)

        if self._within is not None:
            return self._within.end()
        usage = usage_of(self._api, self._last) if self._last else None
        return () if usage is None else (usage,)
