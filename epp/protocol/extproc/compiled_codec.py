"""ext_proc messages by the compiled codec. Without it, this file cannot be imported."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from epp.native import codec
from epp.protocol.extproc.errors import unknown_mode
from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    Chunk,
    HeadersReply,
    ImmediateReply,
    Message,
    Modes,
    Reply,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    TrailersReply,
)


def _mode(number: int) -> BodyMode:
    try:
        return BodyMode(number)
    except ValueError:
        raise unknown_mode(number) from None


@lru_cache(maxsize=64)
def _modes(request: int, response: int) -> Modes:
    return Modes(_mode(request), _mode(response))


def _by_twin(data: bytes) -> Message:
    from epp.protocol.extproc import protobuf  # noqa: PLC0415 (slow to load, and mostly not needed)

    return protobuf.decode(data)


decode: Callable[[bytes], Message] = codec.Decoder(
    (
        RequestHeaders,
        ResponseHeaders,
        RequestBody,
        ResponseBody,
        RequestTrailers,
        ResponseTrailers,
    ),
    _modes,
    _by_twin,
)
"""Read one `ProcessingRequest`. Raises `ProtocolError`."""

_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Chunk: codec.chunk,
    HeadersReply: codec.headers_reply,
    BodyReply: codec.body_reply,
    TrailersReply: codec.trailers_reply,
    ImmediateReply: codec.immediate_reply,
}


def encode(reply: Reply) -> bytes:
    """Write one `ProcessingResponse`."""
    return _ENCODERS[type(reply)](reply)
