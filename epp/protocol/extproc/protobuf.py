"""ext_proc messages by protobuf's generated code, which no other module may import."""

from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.message import DecodeError

from epp._pb import ext_proc_pb2 as pb
from epp.model.endpoint import Target
from epp.protocol.extproc.errors import ProtocolError, unknown_mode
from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    Chunk,
    HeadersReply,
    ImmediateReply,
    Message,
    Modes,
    Mutation,
    Reply,
    Reporting,
    TrailersReply,
    message_of,
)
from epp.protocol.extproc.names import DESTINATION, LB, SCORES, SERVED, SUBSET

# Envoy base.proto, `HeaderAppendAction`: the default appends, and would keep a client's own value.
_OVERWRITE = pb.OVERWRITE_IF_EXISTS_OR_ADD


def decode(data: bytes) -> Message:
    """Read one `ProcessingRequest`. Raises `ProtocolError`."""
    try:
        message = pb.ProcessingRequest.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"not a ProcessingRequest: {error}") from None
    kind = message.WhichOneof("request")
    if kind is None:
        raise ProtocolError("a ProcessingRequest without a request")
    part = getattr(message, kind)
    content: dict[str, str] | bytes | None = None
    end = False
    if kind.endswith("headers"):
        content, end = _headers(part.headers), part.end_of_stream
    elif kind.endswith("body"):
        # ext_proc.proto, `HttpBody`: in full duplex the end may come in a message without a body.
        content, end = part.body, part.end_of_stream or part.end_of_stream_without_message
    return message_of(kind.startswith("response"), content, end, *_extras(message))


def _headers(headers: pb.HeaderMap) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in headers.headers:
        key = header.key.lower()
        if key not in found:
            # Envoy base.proto, `HeaderValue`: one of the two is set; by Envoy `raw_value`, by NGINX
            # Gateway Fabric `value`.
            raw = header.raw_value
            found[key] = raw.decode("utf-8", "replace") if raw else header.value
    return found


def _extras(
    message: pb.ProcessingRequest,
) -> tuple[Modes | None, tuple[str, ...] | None, Target | None]:
    """Return the modes, the subset and the served endpoint that a message has."""
    modes = subset = served = None
    if message.HasField("protocol_config"):
        config = message.protocol_config
        modes = Modes(_mode(config.request_body_mode), _mode(config.response_body_mode))
    # GIE proposal 004: subset and served endpoint are filter metadata.
    metadata = message.metadata_context.filter_metadata
    namespace, key = SUBSET
    if namespace in metadata and key in metadata[namespace].fields:
        subset = tuple(_texts(metadata[namespace].fields[key]))
    namespace, key = SERVED
    if namespace in metadata and key in metadata[namespace].fields:
        served = next(iter(_texts(metadata[namespace].fields[key])), None)
    return modes, subset, None if served is None else Target(served)


def _mode(number: int) -> BodyMode:
    try:
        return BodyMode(number)
    except ValueError:
        raise unknown_mode(number) from None


def _texts(value: Any) -> Iterable[str]:  # noqa: ANN401 (google.protobuf.Value, in two stub forms)
    """Read a string or a list of strings, each of which may hold several joined by commas."""
    values = value.list_value.values if value.HasField("list_value") else [value]
    for item in values:
        yield from (part for part in map(str.strip, item.string_value.split(",")) if part)


def encode(reply: Reply) -> bytes:
    """Write one `ProcessingResponse`."""
    message = pb.ProcessingResponse()
    _WRITERS[type(reply)](message, reply)
    return message.SerializeToString()


def _chunk(message: pb.ProcessingResponse, reply: Chunk) -> None:
    part = message.response_body if reply.response else message.request_body
    streamed = part.response.body_mutation.streamed_response
    streamed.body = bytes(reply.body)
    streamed.end_of_stream = reply.end_of_stream


def _headers_reply(message: pb.ProcessingResponse, reply: HeadersReply) -> None:
    part = message.response_headers if reply.response else message.request_headers
    part.SetInParent()
    _mutate(message, part.response, reply.mutation)


def _body_reply(message: pb.ProcessingResponse, reply: BodyReply) -> None:
    part = message.response_body if reply.response else message.request_body
    part.SetInParent()
    _mutate(message, part.response, reply.mutation)
    if reply.mutation.body is not None:
        part.response.body_mutation.body = reply.mutation.body


def _mutate(message: pb.ProcessingResponse, common: pb.CommonResponse, mutation: Mutation) -> None:
    if mutation.set_headers or mutation.remove_headers:
        _set(common.header_mutation, mutation.set_headers)
        common.header_mutation.remove_headers.extend(mutation.remove_headers)
    if mutation.clear_route_cache:
        common.clear_route_cache = True
    if mutation.destination:
        # GIE proposal 004: `dynamic_metadata["envoy.lb"]`; Istio reads nothing else.
        inner = message.dynamic_metadata.fields[LB].struct_value
        inner.fields[DESTINATION].string_value = mutation.destination
        if mutation.scores:
            scores = inner.fields[SCORES].struct_value.fields
            for target, score in mutation.scores:
                scores[target].number_value = score


def _set(mutation: pb.HeaderMutation, headers: Iterable[tuple[str, str]]) -> None:
    for key, value in headers:
        option = mutation.set_headers.add()
        option.append_action = _OVERWRITE
        option.header.key = key
        # In replies Envoy, and NGINX Gateway Fabric, read `raw_value`.
        option.header.raw_value = value.encode()


def _trailers_reply(message: pb.ProcessingResponse, reply: TrailersReply) -> None:
    (message.response_trailers if reply.response else message.request_trailers).SetInParent()


def _immediate_reply(message: pb.ProcessingResponse, reply: ImmediateReply) -> None:
    immediate = message.immediate_response
    immediate.status.code = reply.status
    _set(immediate.headers, reply.headers)
    immediate.body = reply.body
    immediate.details = reply.details


def _reporting(message: pb.ProcessingResponse, reply: Reporting) -> None:
    _WRITERS[type(reply.reply)](message, reply.reply)
    for namespace, key, value in reply.reported:
        inner = message.dynamic_metadata.fields[namespace].struct_value
        inner.fields[key].number_value = value


_WRITERS: dict[type, Callable[[pb.ProcessingResponse, Any], None]] = {
    Chunk: _chunk,
    HeadersReply: _headers_reply,
    BodyReply: _body_reply,
    TrailersReply: _trailers_reply,
    ImmediateReply: _immediate_reply,
    Reporting: _reporting,
}
