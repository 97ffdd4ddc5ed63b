"""The compiled codec against generated code, on messages good, rare, damaged and random."""

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as upstream
from hypothesis import given
from hypothesis import strategies as st

from epp.protocol.extproc import codec, protobuf
from epp.protocol.extproc.errors import ProtocolError
from epp.protocol.extproc.messages import (
    BodyReply,
    Chunk,
    HeadersReply,
    ImmediateReply,
    Mutation,
    TrailersReply,
)
from tests.protocol.extproc.codecs import CODECS, needs_compiled

pytestmark = needs_compiled

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.one_of(TEXTS, st.sampled_from([":path", "Content-Type", "x-Ü", ""]))
HEADERS = st.lists(
    st.fixed_dictionaries({"key": NAMES, "value": TEXTS, "raw_value": st.binary(max_size=8)}),
    max_size=5,
)
ENDS = st.booleans()
LIMIT = 65_536


@st.composite
def parts(draw):
    """Draw one of the six messages, as arguments of `ProcessingRequest`."""
    name = draw(st.sampled_from(["headers", "body", "trailers"]))
    way = draw(st.sampled_from(["request", "response"]))
    if name == "headers":
        part = upstream.HttpHeaders(end_of_stream=draw(ENDS))
        for header in draw(HEADERS):
            part.headers.headers.add(**header)
        part.attributes["other"].update({"a": draw(TEXTS)})
    elif name == "body":
        part = upstream.HttpBody(
            body=draw(st.binary(max_size=300)),
            end_of_stream=draw(ENDS),
            end_of_stream_without_message=draw(ENDS),
        )
    else:
        part = upstream.HttpTrailers()
        part.trailers.headers.add(key="a", raw_value=b"b")
    return {f"{way}_{name}": part}


NAMESPACES = ("envoy.lb", "envoy.lb.subset_hint", "envoy.other")
LISTED = st.one_of(TEXTS, st.just(" a:1, b ,,"), st.none(), st.booleans(), st.floats(-9, 9))
METADATA = st.dictionaries(
    st.sampled_from(
        (
            "x-gateway-destination-endpoint",
            "x-gateway-destination-endpoint-served",
            "x-gateway-destination-endpoint-subset",
        )
    ),
    st.one_of(LISTED, st.lists(LISTED, max_size=3), st.just({"a": {"b": "c"}})),
)


@st.composite
def requests(draw):
    """Draw whole requests, with what may ride on them, known and unknown."""
    message = upstream.ProcessingRequest(**draw(parts()))
    if draw(ENDS):
        message.protocol_config.request_body_mode = draw(st.integers(-1, 9))
        message.protocol_config.response_body_mode = draw(st.integers(0, 5))
    for namespace in draw(st.lists(st.sampled_from(NAMESPACES), unique=True)):
        message.metadata_context.filter_metadata[namespace].update(draw(METADATA))
    if draw(ENDS):
        message.attributes["envoy.filters.http.ext_proc"].update({"request.path": draw(TEXTS)})
    message.observability_mode = draw(ENDS)
    return message.SerializeToString()


def read(codec, data):
    """Read a message; what is none is None."""
    try:
        return CODECS[codec].decode(data)
    except ProtocolError:
        return None


def agreed(data):
    found = read("compiled", data)
    assert found == read("protobuf", data)
    return found


@given(requests())
def test_both_read_the_same(data):
    agreed(data)


@given(requests(), requests())
def test_both_read_repeated_fields(first, second):
    agreed(first + second)


@given(st.binary(max_size=40))
def test_both_read_anything(data):
    agreed(data)


@given(requests(), st.data())
def test_both_read_damaged_messages(data, choice):
    at = choice.draw(st.integers(0, len(data) - 1))
    agreed(data[:at])
    agreed(data[:at] + choice.draw(st.binary(min_size=1, max_size=3)) + data[at + 1 :])


VARINTS = [
    b"\x82\xff\xff\xff\xff\xff\x00\x00\x2a\x00",
    b"\x80" * 9 + b"\x01",
    b"\x80" * 9 + b"\x02",
    b"\x80" * 10 + b"\x01",
    b"\x80\x00",
    b"\x02",
]


@pytest.mark.parametrize("number", VARINTS)
def test_both_read_odd_numbers(number):
    agreed(b"\x22" + bytes([1 + len(number)]) + b"\x10" + number)  # end of stream
    agreed(b"\x5a" + bytes([1 + len(number)]) + b"\x08" + number + b"\x22\x00")  # a mode
    agreed(b"\x22" + number)  # a length
    agreed(number + b"\x22\x00")  # a tag
    agreed(number.replace(b"\x01", b"\x00") + b"\x22\x00")


def test_values_are_no_views_of_the_input():
    data = bytearray(
        upstream.ProcessingRequest(request_body={"body": b"x" * 100}).SerializeToString()
    )
    with pytest.raises(TypeError):
        CODECS["compiled"].decode(data)


@pytest.mark.parametrize("size", [16_383, 16_384, LIMIT])
@pytest.mark.parametrize("way", ["request_body", "response_body"])
def test_both_read_long_bodies(way, size):
    body = {"body": bytes(range(256)) * (size // 256) + b"x" * (size % 256), "end_of_stream": True}
    data = upstream.ProcessingRequest(**{way: body}).SerializeToString()
    assert agreed(data).body == body["body"]


def test_a_long_body_of_a_request_is_not_copied():
    data = upstream.ProcessingRequest(request_body={"body": b"x" * LIMIT}).SerializeToString()
    found = CODECS["compiled"].decode(data).body
    assert isinstance(found, memoryview)
    assert found.obj is data


TOLD = st.lists(st.tuples(TEXTS, TEXTS), max_size=4).map(tuple)
MUTATIONS = st.builds(
    Mutation,
    set_headers=TOLD,
    remove_headers=st.lists(TEXTS, max_size=4).map(tuple),
    body=st.none() | st.binary(max_size=300),
    clear_route_cache=ENDS,
    destination=TEXTS,
    scores=st.lists(st.tuples(TEXTS, st.floats(-9, 9)), max_size=2).map(tuple),
)
REPLIES = st.one_of(
    st.builds(Chunk, ENDS, st.binary(max_size=300), ENDS),
    st.builds(Chunk, ENDS, st.binary(max_size=3000).map(memoryview), ENDS),
    st.builds(HeadersReply, ENDS, MUTATIONS),
    st.builds(BodyReply, ENDS, MUTATIONS),
    st.builds(TrailersReply, ENDS),
    st.builds(ImmediateReply, st.sampled_from([0, 200, 429, 503]), TOLD, st.binary(), TEXTS),
)


def same_to_envoy(reply):
    ours, theirs = (
        upstream.ProcessingResponse.FromString(each.encode(reply)) for each in CODECS.values()
    )
    assert ours == theirs
    assert not ours.FindInitializationErrors()
    if isinstance(reply, Chunk):
        parts = codec.encode_chunk(reply.response, reply.body, reply.end_of_stream)
        whole = parts if isinstance(parts, bytes) else b"".join(parts)
        assert upstream.ProcessingResponse.FromString(whole) == ours


@given(REPLIES)
def test_envoy_reads_the_same_of_both(reply):
    same_to_envoy(reply)


@pytest.mark.parametrize("size", [0, 1, 100, 112, 120, 127, 128, 16_000, 16_383, 16_384, LIMIT])
@pytest.mark.parametrize("ends", [True, False])
def test_chunks_of_sizes_that_take_another_byte(size, ends):
    for near in range(max(0, size - 12), size + 1):
        same_to_envoy(Chunk(True, b"x" * near, ends))


UNWRITABLE = Mutation(set_headers=(("a", "\ud800"),))


@pytest.mark.parametrize("codec", CODECS)
def test_text_that_cannot_be_written_raises(codec):
    with pytest.raises(ValueError, match="surrogates"):
        CODECS[codec].encode(HeadersReply(False, UNWRITABLE))


def test_the_source_decides_what_the_extension_does():
    assert read("protobuf", b"\x22\x00") == protobuf.decode(b"\x22\x00")
