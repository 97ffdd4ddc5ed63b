"""Our subset of ext_proc against Envoy's own messages (PyPI package xds-protos)."""

from pathlib import Path

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as upstream
from envoy.type.v3 import http_status_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from epp._pb import ext_proc_pb2 as ours
from epp.errors import NoEndpoints
from epp.protocol.extproc.errors import ProtocolError, error_reply
from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    Chunk,
    HeadersReply,
    Message,
    Modes,
    Mutation,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    TrailersReply,
)
from tests.protocol.extproc.codecs import CODECS

ELSEWHERE = {
    **base_pb2.DESCRIPTOR.message_types_by_name,
    **http_status_pb2.DESCRIPTOR.message_types_by_name,
    **upstream.DESCRIPTOR.message_types_by_name,
}
MESSAGES = sorted(ours.DESCRIPTOR.message_types_by_name)
ENUMS_AS_NUMBERS = {("CommonResponse", "status"), ("HttpStatus", "code")}


def shape(field: FieldDescriptor) -> tuple[object, ...]:
    kind = field.type
    assert field.containing_type is not None
    if (field.containing_type.name, field.name) in ENUMS_AS_NUMBERS:
        kind = FieldDescriptor.TYPE_ENUM  # an enum and an int32 are the same on the wire
    oneof = field.containing_oneof.name if field.containing_oneof else ""
    inner = field.message_type.name if field.message_type else ""
    return field.number, kind, field.is_repeated, oneof, inner


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_is_upstreams(name):
    mine, theirs = ours.DESCRIPTOR.message_types_by_name[name], ELSEWHERE[name]
    assert isinstance(theirs, Descriptor)
    for field in mine.fields:
        twin = theirs.fields_by_name[field.name]
        assert shape(field) == shape(twin), f"{name}.{field.name}"


def test_enums_are_upstreams():
    send_modes = processing_mode_pb2.ProcessingMode.BodySendMode
    assert dict(ours.BodySendMode.items()) == dict(send_modes.items())
    assert {mode.name: mode.value for mode in BodyMode} == dict(send_modes.items())
    actions = base_pb2.HeaderValueOption.HeaderAppendAction
    assert dict(ours.HeaderAppendAction.items()) == dict(actions.items())


def test_the_readme_names_the_release_that_was_compared():
    readme = (Path(__file__).parents[3] / "proto" / "README.md").read_text()
    assert "`9e558093` (Envoy 1.40.0)" in readme


def header_map(*pairs: tuple[str, str, bytes]) -> base_pb2.HeaderMap:
    return base_pb2.HeaderMap(
        headers=[base_pb2.HeaderValue(key=k, value=v, raw_value=r) for k, v, r in pairs]
    )


def metadata(**namespaces: dict[str, object]) -> base_pb2.Metadata:
    message = base_pb2.Metadata()
    for name, values in namespaces.items():
        message.filter_metadata[name.replace("__", ".")].update(values)
    return message


def read(**fields: object) -> Message:
    """Read it with every codec there is."""
    data = upstream.ProcessingRequest(**fields).SerializeToString()
    first: Message
    first, *others = [codec.decode(data) for codec in CODECS.values()]
    assert others == [first] * len(others)
    return first


HEADERS = upstream.HttpHeaders(
    headers=header_map(
        (":Path", "", b"/v1/x"),
        ("X-Plain", "value", b""),
        ("x-both", "value", b"raw"),
        ("x-both", "", b"second"),
        ("x-broken", "", b"\xff"),
    ),
    end_of_stream=True,
)
READ = {":path": "/v1/x", "x-plain": "value", "x-both": "raw", "x-broken": "\ufffd"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"request_headers": HEADERS}, RequestHeaders(headers=READ, end_of_stream=True)),
        ({"response_headers": HEADERS}, ResponseHeaders(headers=READ, end_of_stream=True)),
        (
            {"request_body": upstream.HttpBody(body=b"x", end_of_stream=True)},
            RequestBody(body=b"x", end_of_stream=True),
        ),
        (
            {"response_body": upstream.HttpBody(end_of_stream_without_message=True)},
            ResponseBody(body=b"", end_of_stream=True),
        ),
        ({"request_trailers": upstream.HttpTrailers()}, RequestTrailers()),
        ({"response_trailers": upstream.HttpTrailers()}, ResponseTrailers()),
    ],
)
def test_reads_what_envoy_writes(fields, message):
    assert read(**fields) == message


def test_reads_modes():
    config = upstream.ProtocolConfiguration(request_body_mode=4, response_body_mode=1)
    message = read(request_headers=upstream.HttpHeaders(), protocol_config=config)
    assert message.modes == Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED)


def test_modes_of_a_later_envoy_are_a_protocol_error():
    config = upstream.ProtocolConfiguration(request_body_mode=99)
    data = upstream.ProcessingRequest(protocol_config=config).SerializeToString()
    for codec in CODECS.values():
        with pytest.raises(ProtocolError, match="99"):
            codec.decode(data + b"\x12\x00")


@pytest.mark.parametrize(
    ("value", "subset"),
    [
        (["1.1.1.1:1", "2.2.2.2:2"], ("1.1.1.1:1", "2.2.2.2:2")),
        ("1.1.1.1:1, 2.2.2.2", ("1.1.1.1:1", "2.2.2.2")),
        (["1.1.1.1:1,2.2.2.2:2"], ("1.1.1.1:1", "2.2.2.2:2")),
        ([], ()),
        ("", ()),
        ([5], ()),
    ],
)
def test_reads_the_subset_hint(value, subset):
    hint = metadata(envoy__lb__subset_hint={"x-gateway-destination-endpoint-subset": value})
    assert read(request_body=upstream.HttpBody(), metadata_context=hint).subset == subset


def test_no_subset_hint_is_not_an_empty_one():
    other = metadata(envoy__lb__subset_hint={"another-key": "x"}, envoy__lb={"x": "y"})
    message = read(request_body=upstream.HttpBody(), metadata_context=other)
    assert message.subset is None
    assert message.served is None


def test_reads_who_served():
    served = metadata(envoy__lb={"x-gateway-destination-endpoint-served": "1.1.1.1:1"})
    message = read(response_headers=upstream.HttpHeaders(), metadata_context=served)
    assert message.served == "1.1.1.1:1"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"\xff", b"", b"\x12\x7f"])
def test_garbage_is_a_protocol_error(codec, data):
    with pytest.raises(ProtocolError):
        CODECS[codec].decode(data)


def written(reply) -> upstream.ProcessingResponse:
    """Write it with every codec there is."""
    first, *others = [
        upstream.ProcessingResponse.FromString(codec.encode(reply)) for codec in CODECS.values()
    ]
    assert others == [first] * len(others)
    return first


MUTATION = Mutation(
    set_headers=(("a", "ü"),),
    remove_headers=("b",),
    clear_route_cache=True,
    destination="1.1.1.1:1",
)


@pytest.mark.parametrize("response", [False, True])
def test_envoy_reads_header_replies(response):
    message = written(HeadersReply(response, MUTATION))
    assert message.WhichOneof("response") == ("response_headers" if response else "request_headers")
    common = (message.response_headers if response else message.request_headers).response
    (option,) = common.header_mutation.set_headers
    assert (option.header.key, option.header.raw_value) == ("a", "ü".encode())
    assert option.append_action == base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert list(common.header_mutation.remove_headers) == ["b"]
    assert common.clear_route_cache
    inner = message.dynamic_metadata["envoy.lb"]
    assert inner["x-gateway-destination-endpoint"] == "1.1.1.1:1"


def test_envoy_reads_chunks():
    message = written(Chunk(True, b"x", True))
    streamed = message.response_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"x", True)
    assert not message.HasField("dynamic_metadata")


def test_envoy_reads_body_replies():
    message = written(BodyReply(False, Mutation(body=b"")))
    assert message.request_body.response.body_mutation.WhichOneof("mutation") == "body"
    assert written(BodyReply(True)).WhichOneof("response") == "response_body"
    assert written(TrailersReply(False)).WhichOneof("response") == "request_trailers"


def test_envoy_reads_errors():
    reply = error_reply(NoEndpoints("nobody", retry_after=2))
    immediate = written(reply).immediate_response
    assert immediate.status.code == 503
    sent = {each.header.key: each.header.raw_value for each in immediate.headers.set_headers}
    assert sent["retry-after"] == b"2"
    assert immediate.details == "warmpick_no-endpoints"
