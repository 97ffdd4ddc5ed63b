"""Messages and replies of ext_proc as plain values.

The six messages mirror `ProcessingRequest` of Envoy's ext_proc, the replies `ProcessingResponse`;
only `epp.protocol.extproc.codec` knows their encoding.
"""

from collections.abc import Mapping
from enum import IntEnum

import msgspec

from epp.model.endpoint import Target


class BodyMode(IntEnum):
    """The mode in which a proxy sends a body (ext_proc.proto `ProcessingMode.BodySendMode`)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class Modes(msgspec.Struct, frozen=True):
    """The body modes in force: those of the first message (`protocol_config`) where it has them.

    The defaults are what GIE proposal 004 demands of a proxy.
    """

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that any message may carry: modes, the subset hint, the target that served.

    The last two come as metadata (GIE proposal 004). None: the message has no such thing.
    """

    modes: Modes | None = None
    subset: tuple[str, ...] | None = None
    served: Target | None = None


class RequestHeaders(Message, frozen=True, kw_only=True):
    """The head of a request: header names in lower case (RFC 9113 §8.2).

    Of a repeated header the first value counts. `end_of_stream`: there is no body.
    """

    headers: Mapping[str, str]
    end_of_stream: bool = False


class RequestBody(Message, frozen=True, kw_only=True, gc=False):
    """A piece of the request's body, or all of it (`WHOLE_BODIES`)."""

    body: bytes
    end_of_stream: bool = False


class RequestTrailers(Message, frozen=True, kw_only=True):
    """The request ended with trailers."""


class ResponseHeaders(Message, frozen=True, kw_only=True):
    """The head of a response, in the form of `RequestHeaders`."""

    headers: Mapping[str, str]
    end_of_stream: bool = False


class ResponseBody(Message, frozen=True, kw_only=True, gc=False):
    """A piece of the response's body, or all of it (`WHOLE_BODIES`)."""

    body: bytes
    end_of_stream: bool = False


class ResponseTrailers(Message, frozen=True, kw_only=True):
    """The response ended with trailers."""


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to headers, the route, the body and metadata.

    `body` replaces all of the body, None leaves it; full duplex has `Chunk` instead.
    `clear_route_cache` has the proxy choose the route again. `destination`, if not empty, is
    written to the dynamic metadata `envoy.lb` (GIE proposal 004), and beside it `scores`, the
    scores of endpoints by their targets (llm-d-router's `--emit-endpoint-scores`).
    """

    set_headers: tuple[tuple[str, str], ...] = ()
    remove_headers: tuple[str, ...] = ()
    body: bytes | None = None
    clear_route_cache: bool = False
    destination: str = ""
    scores: tuple[tuple[str, float], ...] = ()


UNCHANGED = Mutation()
"""Changes nothing."""


class HeadersReply(msgspec.Struct, frozen=True):
    """Passes headers on, changed. `response`: those of the response."""

    response: bool
    mutation: Mutation = UNCHANGED


class BodyReply(msgspec.Struct, frozen=True):
    """Passes a body message on, changed; in every mode but full duplex."""

    response: bool
    mutation: Mutation = UNCHANGED


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Sends a piece of the body on in full duplex (`StreamedBodyResponse`)."""

    response: bool
    body: bytes
    end_of_stream: bool


class TrailersReply(msgspec.Struct, frozen=True):
    """Passes trailers on."""

    response: bool


class ImmediateReply(msgspec.Struct, frozen=True):
    """Answers the client in the model server's place; the exchange is over.

    `status` is the HTTP status, `details` is for Envoy's access log (`%RESPONSE_CODE_DETAILS%`).
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    details: str


class Reporting(msgspec.Struct, frozen=True):
    """The last reply of a response, with numbers for the proxy's dynamic metadata.

    Each of `reported` is a namespace, a key in it, and a value.
    """

    reply: BodyReply | Chunk | TrailersReply
    reported: tuple[tuple[str, str, float], ...]


Reply = HeadersReply | BodyReply | Chunk | TrailersReply | ImmediateReply | Reporting

WHOLE_BODIES = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
"""Modes in which one message holds all of the body that is shown."""

UNSEEN_BODIES = (BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC)
"""Modes in which headers must be answered before the body is seen, if it ever is."""

CHUNK_BYTES = 62_000
"""The most that one `Chunk` may hold, in bytes: GIE's own margin below Envoy's 64 KiB."""

STEP_BYTES = 1 << 19
"""About how many bytes of a long body one step sends on, before the proxy has read some of them."""


def chunks(body: bytes, *, response: bool, last: bool) -> list[Reply]:
    """Cut a body into chunks, the last of which ends it where `last` says so.

    An empty body is a chunk too, for it may carry the end.
    """
    if len(body) <= CHUNK_BYTES:
        return [Chunk(response, body, last)]
    return [
        Chunk(response, body[at : at + CHUNK_BYTES], last and at + CHUNK_BYTES >= len(body))
        for at in range(0, len(body), CHUNK_BYTES)
    ]


def next_chunks(pieces: list[bytes], *, last: bool) -> tuple[list[Reply], list[bytes]]:
    """Return chunks of about `STEP_BYTES` of a request's body, and the pieces that follow them.

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
