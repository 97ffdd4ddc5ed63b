"""Whatever reads what others send, in time linear in it: unfinished, escaped, repeated, nested."""

import struct
from contextlib import suppress
from functools import partial
from itertools import product

import pytest

from epp._pb import engine_api_pb2 as pb
from epp.errors import ConfigError, MalformedRequest
from epp.label_selector import parse_label_selector
from epp.model.endpoint import Endpoint
from epp.model.request import Api, RequestId
from epp.protocol.bodies.apis import FRAMED
from epp.protocol.bodies.body import Body
from epp.protocol.bodies.content_blocks import billing_span
from epp.protocol.bodies.grpc_body import FrameRestorer, framed
from epp.protocol.bodies.model_rewrite import ModelRestorer, replace_model
from epp.protocol.bodies.usage import merge_usage
from epp.protocol.bodies.usage_reader import usage_reader
from epp.protocol.endpoints import endpoints_steps, parse_endpoints
from epp.protocol.extproc.observation import Observation
from epp.protocol.kube.watch import LineSplitter, StreamBroken
from epp.protocol.kvevents.batches import rank_of, time_of
from epp.protocol.metrics.metric_specs import parse_spec
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.orca import parse_orca
from epp.protocol.metrics.page import Page
from epp.protocol.steps import finish
from epp.protocol.yaml import load_yaml
from tests.kvpublisher import read_batch
from tests.native.built import loaded
from tests.protocol.growth import repeated, seconds, too_steep

GRPC = sorted(FRAMED, key=lambda api: api.value)
READERS = [each.BodyReader for each in loaded("epp.protocol.bodies.body_reader")]
SCANNERS = [each.ObjectScanner for each in loaded("epp.protocol.bodies.object_scanner")]
PIECES = 16
MAX_SECONDS = 0.25
"""Of CPU: five times what it takes at most, and a fiftieth of what would be quadratic."""


def pieces(data):
    size = len(data) // PIECES + 1
    return [data[at : at + size] for at in range(0, len(data), size)]


# Requests.

START = b'{"model":"m",'
HEADS = {
    Api.CHAT: (b'"messages":[{"content":"', b'"messages":[{"content":[{"text":', b'"tools":'),
    Api.COMPLETIONS: (b'"prompt":"', b'"prompt":[', b'"prompt":[1,[', b'"max_tokens":'),
    Api.EMBEDDINGS: (b'"input":["', b'"input":[['),
    Api.RESPONSES: (
        b'"instructions":"',
        b'"input":[{"content":"',
        b'"input":[{"role":"u","content":[',
        b'"input":"a","reasoning":{"a":"',
    ),
    Api.CONVERSATIONS: (b'"items":"', b'"items":['),
    Api.IMAGES: (b'"prompt":"', b'"user":"'),
    Api.MESSAGES: (
        b'"system":[{"text":"x-anthropic-billing-header',
        b'"messages":[{"content":[{"type":"tool_result","content":[{"source":{"data":"',
        b'"messages":[{"content":[',
        b'"messages":[{}],"output_config":{"a":"',
        b'"messages":[{}],"thinking":[',
    ),
    Api.GENERATE: (b'"token_ids":[', b'"token_ids":[1],"sampling_params":', b'"token_ids":"'),
    Api.SGLANG_GENERATE: (b'"extra_key":"', b'"text":"', b'"input_ids":['),
    Api.RAW_PREDICT: (b'"prompt":"', b'"messages":[{"content":"', b'"input":'),
    Api.COUNT_TOKENS: (b'"messages":[{"content":"',),
}
UNITS = (
    *(b'\\"', b"\\\\", b"\\", b'"', b'",', b'"a":1,', b'"model":"m",', b'"\\u006dodel":"m",'),
    *(b'"priority":', b'{"a":', b"{", b"[", b"{},", b"[1],", b"1", b"1,", b" ", b"\\ud800"),
)
TAILS = (b"", b'"}]}', b"1]}")


def read_and_edit(api, reader, data):
    body = Body(api, reader)
    for piece in pieces(data):
        body.feed(piece)
    with suppress(MalformedRequest):
        body.parse()
        body.rewritten("another", -1)


@pytest.mark.parametrize("reader", READERS, ids=lambda kind: kind.__module__)
@pytest.mark.parametrize("api", HEADS)
def test_bodies(api, reader):
    for head, unit, tail in product((b"", *HEADS[api]), UNITS, TAILS):
        made = repeated(START + head, unit, tail)
        steep = too_steep(lambda data: read_and_edit(api, reader, data), made)
        assert not steep, (head, unit, tail, steep)


@pytest.mark.parametrize("reader", READERS, ids=lambda kind: kind.__module__)
@pytest.mark.parametrize("unit", UNITS)
def test_whole_bodies_that_are_edited(reader, unit):
    text = unit.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    for head, tail in product((b"", b'"\\u0061":1,', b'"priority":1,"priority":2,'), (b"", b"  ")):
        made = repeated(START + head + b'"prompt":"', text, b'"}' + tail)
        steep = too_steep(lambda data: read_and_edit(Api.COMPLETIONS, reader, data), made)
        assert not steep, (head, steep)


LONG = [
    (size, head, unit)
    for size in (70_000, 1 << 20, 5_100_000)
    for head in (b'"messages":[{"role":"user","content":"', b'"\\u0061":1,"x":"', b'"x":[')
    for unit in (b'\\"', b"\\", b"a\\n", b"[", b'"",')
]


@pytest.mark.parametrize("reader", READERS, ids=lambda kind: kind.__module__)
@pytest.mark.parametrize(("size", "head", "unit"), LONG)
def test_a_long_body_that_has_no_end_is_refused_at_once(reader, size, head, unit):
    data = repeated(START + head, unit, b"")(size)

    def refused(data):
        body = Body(Api.CHAT, reader)
        for at in range(0, len(data), 1 << 16):
            body.feed(data[at : at + (1 << 16)])
        with pytest.raises(MalformedRequest) as raised:
            body.parse()
        assert raised.value.status == 400

    assert seconds(refused, data) < MAX_SECONDS


# gRPC.


def in_message(data):
    """Put JSON into a message of Vertex AI's, and that into a frame."""
    return framed(pb.Predict(http_body=pb.HttpBody(data=data)).SerializeToString())


def answered(data):
    """Put JSON or events into an answer of Vertex AI's, and that into a frame."""
    return framed(pb.HttpBody(data=data).SerializeToString())


@pytest.mark.parametrize("api", GRPC)
@pytest.mark.parametrize("unit", UNITS)
def test_framed_bodies(api, unit):
    for head, tail in product(
        (b"", START + b'"prompt":"', START + HEADS[Api.CHAT][0]), (b"", b'"}')
    ):
        made = repeated(head, unit, tail)
        steep = too_steep(lambda data: read_and_edit(api, READERS[0], framed(data)), made)
        assert not steep, (head, steep)
        steep = too_steep(lambda data: read_and_edit(api, READERS[0], in_message(data)), made)
        assert not steep, ("in a message", head, steep)


# Answers.

ANSWERS = (
    *(b'{"a":"', b'{"model":"m","a":"', b'data: {"model":"', b'data:{"a":{"model":"m"},"b":"'),
    *(b'{"usage":{"prompt_tokens":1},"a":"', b'data:{"usage":{', b'{"meta_info":', b'"model"'),
)
ANSWER_UNITS = (
    *(b'\\"', b"\\", b"\\\\", b'"', b"{", b"[", b"]", b"}", b'"a":', b"\n", b"\r", b" ", b"1,"),
    *(b"data:\n", b'data:"model"\n', b'"model":"m",', b'{"model":', b'"usage":{', b'"usage":{},'),
    *(b'"usage" ', b'"meta_info":', b'data:{"model":"m"}\n\n', b'{"\\u006dodel":', b"\0\0\0\0\1a"),
)


def restoring(restorer):
    def work(data):
        one = restorer()
        for piece in pieces(data):
            one.feed(piece, last=False)
        one.feed(b"", last=True)

    return work


def measuring(scanner):
    def work(data):
        one = scanner()
        for piece in pieces(data):
            merge_usage(None, one.feed(piece))
        merge_usage(None, one.end())

    return work


USAGES = [
    (api, form, streaming)
    for api in (Api.CHAT, Api.SGLANG_GENERATE, Api.MESSAGES, *GRPC)
    for form, streaming in (
        [("application/grpc", False)]
        if api in FRAMED
        else [("application/json", False), ("text/event-stream", True)]
    )
]
TAKE = {
    "JSON": restoring(lambda: ModelRestorer("x", sse=False)),
    "events": restoring(lambda: ModelRestorer("x", sse=True)),
    "frames": restoring(lambda: FrameRestorer("x")),
    "a body": lambda data: replace_model(data, "x"),
    **{f"{each.__module__} of JSON": measuring(each) for each in SCANNERS},
    **{f"{each.__module__} of events": measuring(partial(each, 2, True)) for each in SCANNERS},
    **{
        f"usage of {api} {form}": measuring(partial(usage_reader, api, form, streaming=streaming))
        for api, form, streaming in USAGES
    },
}


@pytest.mark.parametrize("reader", TAKE)
def test_answers(reader):
    take = TAKE[reader]
    for head, unit in product(ANSWERS, ANSWER_UNITS):
        steep = too_steep(take, repeated(head, unit, b""))
        assert not steep, (head, unit, steep)
        if reader == "frames" or "grpc" in reader:
            steep = too_steep(lambda data: take(answered(data)), repeated(head, unit, b"\n"))
            assert not steep, ("in a frame", head, unit, steep)


@pytest.mark.parametrize("sse", [False, True])
@pytest.mark.parametrize("unit", ANSWER_UNITS)
def test_no_answer_holds_others_up_for_its_models_name(unit, sse):
    for head in (b"", b'data:{"a":"' if sse else b'{"a":"'):
        data = repeated(head, unit, b"\n")(8 << 20)
        taken = seconds(lambda data: ModelRestorer("x", sse=sse).feed(data, last=True), data)
        assert taken < MAX_SECONDS


# What endpoints, engines and operators say.

SAID = (
    *(b"a", b"a ", b" ", b",", b"\n", b'"', b"\\", b'\\"', b"{", b"[", b"(", b"- ", b"a: "),
    *(b"a:\n ", b'"a": ', b"&a ", b"*a ", b"!a ", b"# ", b"0", b"1.", b"a,", b"a in (b),", b"a="),
    *(
        b'a="b",',
        b"-",
        b"\x91",
        b"\x81\xa1a",
        b"\x93\xcb\0\0\0\0\0\0\0\0\x91",
        b'{"type":"ADDED"}\n',
    ),
    *(b"vllm:num_requests_waiting 1\n", b'vllm:num_requests_waiting{engine="0"} 1\n'),
    b"- {name: a, address: 10.0.0.1, port: 1}\n",
)
SAID_HEADS = (
    *(b"", b'"', b"endpoints:\n", b"endpoints: [{name: a, address: ", b"a in (", b"a{", b"JSON {"),
    *(b'vllm:num_requests_waiting{engine="', b"vllm:cache_config_info{", b"TEXT named_metrics.a="),
    *(struct.pack(">BBdB", 0x93, 0xCB, 0.0, 0xDC), b"\x93\x00\xdd\x00\x00\xff\xff", b'{"a":"'),
)
POD = Endpoint("default", "a", "10.0.0.1", 8000)


def refusing(work):
    def refused(data):
        with suppress(ConfigError, ValueError, StreamBroken, RecursionError):
            work(data)

    return refused


def lines(data):
    splitter = LineSplitter()
    for piece in pieces(data):
        list(splitter.feed(piece))


SAYINGS = {
    "a metrics page": lambda data: MetricsReader(POD).read(Page(data), at=1.0),
    "a load report": lambda data: parse_orca(data.decode("latin-1"), RequestId("1"), POD.target),
    "KV events": lambda data: (read_batch(data, "m"), time_of(data), rank_of(data)),
    "YAML": load_yaml,
    "endpoints": parse_endpoints,
    "clusters": lambda data: finish(endpoints_steps(data, lambda _name, _port: "")),
    "a metric": lambda data: parse_spec(data.decode("latin-1")),
    "a label selector": lambda data: parse_label_selector(data.decode("latin-1")),
    "an observation": lambda data: Observation.parse(data.decode("latin-1")),
    "an attribution": billing_span,
    "a watch": lines,
}


@pytest.mark.parametrize("reader", SAYINGS)
def test_what_others_say(reader):
    for head, unit in product(SAID_HEADS, SAID):
        steep = too_steep(refusing(SAYINGS[reader]), repeated(head, unit, b""))
        assert not steep, (head, unit, steep)
