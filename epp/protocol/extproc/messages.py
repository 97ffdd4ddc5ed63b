"""Messages and replies of ext_proc as plain values.

The six messages mirror `ProcessingRequest` of Envoy's ext_proc, the replies `ProcessingResponse`;
only `epp.protocol.extproc.codec` knows their encoding.
"""

from enum import IntEnum
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.endpoint import Target
from epp.protocol.bodies.body_reader import BodyData
from epp.values import Value


class BodyMode(IntEnum):
    """The mode in which a proxy sends a body (ext_proc.proto `ProcessingMode.BodySendMode`)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


@mypyc_attr(free_list_len=1, acyclic=True)
class Modes(Value):
    """The body modes in force: those of the first message (`protocol_config`) if it has them.

    The defaults are those that GIE proposal 004 demands of a proxy.
    """

    def __init__(
        self,
        request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED,
        response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED,
    ) -> None:
        self.request: Final = request
        self.response: Final = response


@mypyc_attr(acyclic=True)
class Message(Value):
    """The fields that any message may carry: modes, the subset hint, the target that served.

    The last two come as metadata (GIE proposal 004). None: the message does not have it.
    """

    def __init__(
        self,
        modes: Modes | None = None,
        subset: tuple[str, ...] | None = None,
        served: Target | None = None,
    ) -> None:
        self.modes: Final = modes
        self.subset: Final = subset
        self.served: Final = served


@mypyc_attr(acyclic=True)
class Head(Message):
    """The head of a request or a response: header names in lower case (RFC 9113 §8.2).

    Of a repeated header the first value counts. `end_of_stream`: there is no body.
    """

    def __init__(
        self,
        headers: dict[str, str],
        end_of_stream: bool = False,  # noqa: FBT001, FBT002 (see `message_of`)
        modes: Modes | None = None,
        subset: tuple[str, ...] | None = None,
        served: Target | None = None,
    ) -> None:
        super().__init__(modes, subset, served)
        self.headers: Final = headers
        self.end_of_stream: Final = end_of_stream


@mypyc_attr(acyclic=True)
class Piece(Message):
    """A piece of a body, or all of it (`WHOLE_BODIES`)."""

    def __init__(
        self,
        body: BodyData,
        end_of_stream: bool = False,  # noqa: FBT001, FBT002 (see `message_of`)
        modes: Modes | None = None,
        subset: tuple[str, ...] | None = None,
        served: Target | None = None,
    ) -> None:
        super().__init__(modes, subset, served)
        self.body: Final = body
        self.end_of_stream: Final = end_of_stream


@mypyc_attr(free_list_len=1, acyclic=True)
class RequestHeaders(Head):
    """The head of a request."""


@mypyc_attr(free_list_len=1, acyclic=True)
class RequestBody(Piece):
    """A piece of the request's body."""


class RequestTrailers(Message):
    """The request ended with trailers."""


@mypyc_attr(free_list_len=1, acyclic=True)
class ResponseHeaders(Head):
    """The head of a response."""


@mypyc_attr(free_list_len=1, acyclic=True)
class ResponseBody(Piece):
    """A piece of the response's body."""


class ResponseTrailers(Message):
    """The response ended with trailers."""


@mypyc_attr(free_list_len=1, acyclic=True)
class Mutation(Value):
    """Changes to headers, the route, the body and metadata.

    `body` replaces all of the body, None leaves it; full duplex has `Chunk` instead. With
    `clear_route_cache` the proxy chooses the route again. `destination`, if not empty, is written
    to the dynamic metadata `envoy.lb` (GIE proposal 004), together with `scores`, the scores of
    endpoints by their targets (llm-d-router's `--emit-endpoint-scores`).
    """

    def __init__(  # noqa: PLR0913
        self,
        *,
        set_headers: tuple[tuple[str, str], ...] = (),
        remove_headers: tuple[str, ...] = (),
        body: bytes | None = None,
        clear_route_cache: bool = False,
        destination: str = "",
        scores: tuple[tuple[str, float], ...] = (),
    ) -> None:
        self.set_headers: Final = set_headers
        self.remove_headers: Final = remove_headers
        self.body: Final = body
        self.clear_route_cache: Final = clear_route_cache
        self.destination: Final = destination
        self.scores: Final = scores


UNCHANGED: Final = Mutation()
"""Changes nothing."""


@mypyc_attr(free_list_len=1, acyclic=True)
class HeadersReply(Value):
    """Passes headers on, changed. `response`: those of the response."""

    def __init__(self, response: bool, mutation: Mutation = UNCHANGED) -> None:  # noqa: FBT001
        self.response: Final = response
        self.mutation: Final = mutation


@mypyc_attr(acyclic=True)
class BodyReply(Value):
    """Passes a body message on, changed; in every mode but full duplex."""

    def __init__(self, response: bool, mutation: Mutation = UNCHANGED) -> None:  # noqa: FBT001
        self.response: Final = response
        self.mutation: Final = mutation


@mypyc_attr(free_list_len=1, acyclic=True)
class Chunk(Value):
    """Sends a piece of the body on in full duplex (`StreamedBodyResponse`)."""

    def __init__(self, response: bool, body: BodyData, end_of_stream: bool) -> None:  # noqa: FBT001
        self.response: Final = response
        self.body: Final = body
        self.end_of_stream: Final = end_of_stream


class TrailersReply(Value):
    """Passes trailers on."""

    def __init__(self, response: bool) -> None:  # noqa: FBT001
        self.response: Final = response


class ImmediateReply(Value):
    """Answers the client in the model server's place; the exchange is over.

    `status` is the HTTP status, `details` is for Envoy's access log (`%RESPONSE_CODE_DETAILS%`).
    """

    def __init__(
        self, status: int, headers: tuple[tuple[str, str], ...], body: bytes, details: str
    ) -> None:
        self.status: Final = status
        self.headers: Final = headers
        self.body: Final = body
        self.details: Final = details


class Reporting(Value):
    """The last reply of a response, with numbers for the proxy's dynamic metadata.

    Each of `reported` is a namespace, a key in it, and a value.
    """

    def __init__(
        self,
        reply: BodyReply | Chunk | TrailersReply,
        reported: tuple[tuple[str, str, float], ...],
    ) -> None:
        self.reply: Final = reply
        self.reported: Final = reported


Reply = HeadersReply | BodyReply | Chunk | TrailersReply | ImmediateReply | Reporting

WHOLE_BODIES: Final = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
"""Modes in which one message holds all of the body that is shown."""

UNSEEN_BODIES: Final = (BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC)
"""Modes in which headers must be answered before the body is seen, or without it."""

CHUNK_BYTES: Final = 62_000
"""The most that one `Chunk` may hold, in bytes: GIE's own margin below Envoy's 64 KiB."""

STEP_BYTES: Final = 1 << 19
"""About how many bytes of a long body one step sends on, before the proxy has read some of them."""


def message_of(  # noqa: PLR0913, PLR0917 (what a message has)
    response: bool,  # noqa: FBT001 (the codec names nothing, which costs less)
    content: dict[str, str] | BodyData | None,
    end_of_stream: bool,  # noqa: FBT001
    modes: Modes | None,
    subset: tuple[str, ...] | None,
    served: Target | None,
) -> Message:
    """Return the message of a request or a response; trailers have no content."""
    if content is None:
        if response:
            return ResponseTrailers(modes, subset, served)
        return RequestTrailers(modes, subset, served)
    if isinstance(content, dict):
        if response:
            return ResponseHeaders(content, end_of_stream, modes, subset, served)
        return RequestHeaders(content, end_of_stream, modes, subset, served)
    if response:
        return ResponseBody(content, end_of_stream, modes, subset, served)
    return RequestBody(content, end_of_stream, modes, subset, served)


def chunks(body: BodyData, *, response: bool, last: bool) -> list[Reply]:
    """Cut a body into chunks; with `last` the last one ends the body.

    An empty body is a chunk too, because it may carry the end.
    """
    if len(body) <= CHUNK_BYTES:
        return [Chunk(response, body, last)]
    view = memoryview(body)
    return [
        Chunk(response, view[at : at + CHUNK_BYTES], last and at + CHUNK_BYTES >= len(view))
        for at in range(0, len(view), CHUNK_BYTES)
    ]


def next_chunks(pieces: list[BodyData], *, last: bool) -> tuple[list[Reply], list[BodyData]]:
    """Return chunks of about `STEP_BYTES` of a request's body, and the pieces that follow them.

    Pieces are joined and cut no more than chunks demand. With `last` the body ends with them.
    """
    if len(pieces) == 1 and len(pieces[0]) <= STEP_BYTES:
        return chunks(pieces[0], response=False, last=last), []
    pieces = [part for piece in pieces for part in _cut(piece)]
    replies: list[Reply] = []
    joined: list[BodyData] = []
    size = total = 0
    for taken, piece in enumerate(pieces):
        if size + len(piece) > CHUNK_BYTES and joined:
            replies += chunks(_joined(joined), response=False, last=False)
            joined, size = [], 0
            if total >= STEP_BYTES:
                return replies, pieces[taken:]
        joined.append(piece)
        size += len(piece)
        total += len(piece)
    replies += chunks(_joined(joined), response=False, last=last)
    return replies, []


def _joined(pieces: list[BodyData]) -> BodyData:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _cut(piece: BodyData) -> list[BodyData]:
    if len(piece) <= STEP_BYTES:
        return [piece]
    return [piece[at : at + STEP_BYTES] for at in range(0, len(piece), STEP_BYTES)]
