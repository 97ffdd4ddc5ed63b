"""Messages and replies of ext_proc as plain values.

The six messages mirror `ProcessingRequest` of Envoy's ext_proc, the four replies
`ProcessingResponse`; only `epp.protocol.extproc.codec` knows their wire form.
"""

from collections.abc import Mapping
from enum import IntEnum

import msgspec

from epp.model.endpoint import Target


class BodyMode(IntEnum):
    """How a proxy sends a body (ext_proc `ProcessingMode.BodySendMode`)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class Modes(msgspec.Struct, frozen=True):
    """The body modes in force; what a proxy announces on its first message, where it does."""

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What may ride on any message: modes, the subset hint, the target that served."""

    modes: Modes | None = None
    subset: tuple[str, ...] | None = None
    served: Target | None = None


class RequestHeaders(Message, frozen=True, kw_only=True):
    """Header names in lower case; of a repeated header the first value counts."""

    headers: Mapping[str, str]
    end_of_stream: bool = False


class RequestBody(Message, frozen=True, kw_only=True, gc=False):
    """A piece of the request's body, or all of it."""

    body: bytes
    end_of_stream: bool = False


class RequestTrailers(Message, frozen=True, kw_only=True):
    """The request ended with trailers."""


class ResponseHeaders(Message, frozen=True, kw_only=True):
    """As `RequestHeaders`, for the response."""

    headers: Mapping[str, str]
    end_of_stream: bool = False


class ResponseBody(Message, frozen=True, kw_only=True, gc=False):
    """A piece of the response's body, or all of it."""

    body: bytes
    end_of_stream: bool = False


class ResponseTrailers(Message, frozen=True, kw_only=True):
    """The response ended with trailers."""


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to headers, the route, the body (all of it: not in full duplex) and metadata.

    `destination` is written to the dynamic metadata `envoy.lb`.
    """

    set_headers: tuple[tuple[str, str], ...] = ()
    remove_headers: tuple[str, ...] = ()
    body: bytes | None = None
    clear_route_cache: bool = False
    destination: str = ""


UNCHANGED = Mutation()


class HeadersReply(msgspec.Struct, frozen=True):
    """Let headers go on, changed."""

    response: bool
    mutation: Mutation = UNCHANGED


class BodyReply(msgspec.Struct, frozen=True):
    """Let a body message go on (`STREAMED`, `BUFFERED`), changed."""

    response: bool
    mutation: Mutation = UNCHANGED


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A piece of the body that goes on in full duplex."""

    response: bool
    body: bytes
    end_of_stream: bool


class TrailersReply(msgspec.Struct, frozen=True):
    """Let trailers go on."""

    response: bool


class ImmediateReply(msgspec.Struct, frozen=True):
    """Answer the client in the model server's place; the exchange is over."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    details: str


Reply = HeadersReply | BodyReply | Chunk | TrailersReply | ImmediateReply

WHOLE_BODIES = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
"""Modes in which one message holds all of the body that there will be."""

UNSEEN_BODIES = (BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC)
"""Modes in which headers must be answered before the body is seen, if it ever is."""

CHUNK_BYTES = 62_000
"""The most that one `Chunk` may hold: Envoy's frames end at 64 KiB."""

STEP_BYTES = 1 << 19
"""About how many bytes of a long body one step sends on, before the proxy has read some of them."""


def chunks(body: bytes, *, response: bool, last: bool) -> list[Reply]:
    """Cut a body into chunks; an empty one is a chunk too, for it may carry the end."""
    if len(body) <= CHUNK_BYTES:
        return [Chunk(response, body, last)]
    return [
        Chunk(response, body[at : at + CHUNK_BYTES], last and at + CHUNK_BYTES >= len(body))
        for at in range(0, len(body), CHUNK_BYTES)
    ]


def next_chunks(pieces: list[bytes], *, last: bool) -> tuple[list[Reply], list[bytes]]:
    """Let the pieces of a request's body go on: replies, and the pieces that are to follow them.

    Pieces are joined and cut no more than chunks demand. With `last` the body ends with them.
    """
    if len(pieces) == 1 and len(pieces[0]) <= STEP_BYTES:
        return chunks(pieces[0], response=False, last=last), []
    pieces = [part for piece in pieces for part in _cut(piece)]
    replies: list[Reply] = []
    joined: list[bytes] = []
    size = total = 0
    for taken, piece in enumerate(pieces):
        if size + len(piece) > CHUNK_BYTES and joined:
            replies += chunks(b"".join(joined), response=False, last=False)
            joined, size = [], 0
            if total >= STEP_BYTES:
                return replies, pieces[taken:]
        joined.append(piece)
        size += len(piece)
        total += len(piece)
    replies += chunks(b"".join(joined), response=False, last=last)
    return replies, []


def _cut(piece: bytes) -> list[bytes]:
    if len(piece) <= STEP_BYTES:
        return [piece]
    return [piece[at : at + STEP_BYTES] for at in range(0, len(piece), STEP_BYTES)]
