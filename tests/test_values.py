"""Every number that others write, in every reader: nothing raises, and each has its range."""

import math
from itertools import pairwise, product

import pytest

from epp._pb import engine_api_pb2 as pb
from epp.adapters.scrape.page_readers import ModelsReader
from epp.errors import MalformedRequest
from epp.model.endpoint import Endpoint, Target
from epp.model.events import ModelsListed
from epp.model.request import Api, InferenceRequest, RequestId
from epp.policy.producers.predicted_latency import TPOT_HEADERS, TTFT_HEADERS, slo
from epp.protocol.bodies.apis import FRAMED
from epp.protocol.bodies.body import Body
from epp.protocol.bodies.coercion import MAX_TOKENS
from epp.protocol.bodies.grpc_body import framed
from epp.protocol.bodies.object_scanner import ObjectScanner
from epp.protocol.bodies.usage import merge_usage
from epp.protocol.bodies.usage_reader import usage_reader
from epp.protocol.extproc.messages import ResponseBody, ResponseHeaders
from epp.protocol.kube.watch import ApiRefused, read_status
from epp.protocol.metrics.attribute_reader import DCGM, AttributeReader
from epp.protocol.metrics.capacity import MAX_BLOCK_TOKENS, MAX_CAPACITY_TOKENS
from epp.protocol.metrics.metric_names import (
    ENGINES,
    MAX_ADAPTERS,
    MAX_VALUE,
    RUNNING_ADAPTERS,
    STARTED,
    configuration_of,
    polled,
)
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.orca import KV_USAGE, RUNNING, WAITING, parse_orca
from epp.protocol.metrics.page import Page
from epp.protocol.steps import finish
from tests.native.built import loaded
from tests.protocol.extproc.conversation import OK, Stub, body, chat_body, exchange, headers, play
from tests.values import JSON, NO_JSON, PLAIN, case

READERS = [each.BodyReader for each in loaded("epp.protocol.bodies.body_reader")]
POD = Endpoint("default", "pod-0", "10.0.0.1", 8000)

# Bodies.

TURNS = '[{"role":"user","content":"x"}]'
PROMPTS = {
    Api.CHAT: {"messages": TURNS},
    Api.CHAT_RENDER: {"messages": TURNS},
    Api.COMPLETIONS: {"prompt": '"x"'},
    Api.COMPLETIONS_RENDER: {"prompt": '"x"'},
    Api.EMBEDDINGS: {"input": '["x"]'},
    Api.RESPONSES: {"input": '"x"'},
    Api.CONVERSATIONS: {"items": TURNS},
    Api.IMAGES: {"prompt": '"x"'},
    Api.MESSAGES: {"messages": TURNS},
    Api.COUNT_TOKENS: {"messages": TURNS},
    Api.GENERATE: {"token_ids": "[1,2,3]"},
    Api.SGLANG_GENERATE: {"input_ids": "[1,2,3]"},
    Api.RAW_PREDICT: {"messages": TURNS},
}
IMAGE = '{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":%s,"length":%s}]}}'
FIELDS = [
    *((name, "%s") for name in ("stream", "cache_salt", "extra_key", "priority", "temperature")),
    *((name, "%s") for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n")),
    *((name, "%s") for name in ("sampling_params", "features", "prompt_embeds", "input_embeds")),
    ("sampling_params", '{"max_tokens":%s}'),
    ("sampling_params", '{"max_new_tokens":%s}'),
    ("sampling_params", '{"n":%s}'),
    ("features", '{"mm_hashes":%s,"mm_placeholders":{"image":[{"offset":0,"length":1}]}}'),
    ("features", '{"mm_hashes":{"image":["a"]},"mm_placeholders":%s}'),
    ("features", IMAGE.replace("%s", "0", 1)),
    ("features", IMAGE.replace('length":%s', 'length":1')),
]


def test_all_apis_are_tried():
    assert PROMPTS.keys() == set(Api) - FRAMED - {Api.OTHER}


def object_of(fields):
    return ("{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}").encode()


def read(reader, api, data, cuts=()):
    read = Body(api, reader)
    for start, end in pairwise((0, *cuts, len(data))):
        read.feed(data[start:end])
    return read.parse()


def check_parsed(parsed):
    assert parsed.max_tokens is None or 1 <= parsed.max_tokens <= MAX_TOKENS
    assert type(parsed.max_tokens) in {int, type(None)}
    assert type(parsed.stream) is bool
    assert type(parsed.cache_salt) is type(parsed.model) is str
    parsed.cache_salt.encode()


@pytest.mark.parametrize("api", PROMPTS)
def test_no_value_beside_the_prompt_is_refused(api):
    plain = read(READERS[0], api, object_of({"model": '"m"'} | PROMPTS[api]))
    lengths = [len(each.data) for each in plain.prompts]
    for name, (field, form), first in product(JSON, FIELDS, (True, False)):
        with case(name, field, first):
            beside = {field: form % JSON[name]}
            fields = {"model": '"m"'} | (beside | PROMPTS[api] if first else PROMPTS[api] | beside)
            data = object_of(fields)
            found = [read(reader, api, data) for reader in READERS]
            found.append(read(READERS[0], api, data, (len(data) // 3, len(data) // 2)))
            assert found.count(found[0]) == len(found)
            check_parsed(found[0])
            assert [len(each.data) for each in found[0].prompts] == lengths


@pytest.mark.parametrize("api", PROMPTS)
def test_values_of_the_prompt_and_the_model_are_read_or_refused(api):
    fields = ("model", *PROMPTS[api], "prompt", "input", "messages", "system", "tools")
    for name, field in product(JSON | NO_JSON, fields):
        data = object_of({"model": '"m"'} | PROMPTS[api] | {field: (JSON | NO_JSON)[name]})
        outcomes = []
        with case(name, field):
            for reader in READERS:
                try:
                    outcomes.append(read(reader, api, data))
                    check_parsed(outcomes[-1])
                except MalformedRequest as error:
                    outcomes.append((error.reason, str(error)))
            assert outcomes.count(outcomes[0]) == len(outcomes)


@pytest.mark.parametrize("name", NO_JSON)
def test_what_is_no_json_is_refused(name):
    data = object_of({"model": '"m"', "messages": TURNS, "max_tokens": NO_JSON[name]})
    for reader in READERS:
        with pytest.raises(MalformedRequest, match="not valid JSON") as caught:
            read(reader, Api.CHAT, data)
        assert "truncated" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        *(("5", 5), ("1000.0", 1000), ("1e3", 1000), ('"5"', 5), ('"5.0"', 5), ("true", 1)),
        *(("5.5", None), ('"x"', None), ("0", None), ("-1", None), ('"-1"', None), ("null", None)),
        *(("1e20", None), ("[5]", None), ("false", None)),
        *((str(2**70), MAX_TOKENS), ("1e15", MAX_TOKENS), ("1" + "0" * 400, MAX_TOKENS)),
    ],
)
def test_limits_are_what_the_server_reads(text, tokens):
    fields = {"model": '"m"', "messages": TURNS, "max_tokens": text}
    for reader in READERS:
        assert read(reader, Api.CHAT, object_of(fields)).max_tokens == tokens


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        *((each, True) for each in ("true", "1", "1.0", '"true"', '"1"', '"on"', '"YES"', '"t"')),
        *((each, False) for each in ("false", "0", '"off"', '"n"', "2", '"maybe"', "null", "[1]")),
    ],
)
def test_flags_are_what_the_server_reads(text, flag):
    fields = {"model": '"m"', "messages": TURNS, "stream": text}
    for reader in READERS:
        assert read(reader, Api.CHAT, object_of(fields)).stream is flag


def test_the_first_limit_that_can_be_read_counts():
    limits = {"max_tokens": "7", "max_completion_tokens": "-1", "max_output_tokens": "9"}
    fields = {"model": '"m"', "messages": TURNS} | limits
    for reader in READERS:
        assert read(reader, Api.CHAT, object_of(fields)).max_tokens == 7


@pytest.mark.parametrize(
    ("text", "answers"),
    [("3", 3), ('"4"', 4), ("2.0", 2), ("1e9", 128), ("0", 1), ("-3", 1), ("null", 1), ("[2]", 1)],
)
def test_as_many_answers_are_counted_as_the_server_gives(text, answers):
    chat = {"model": '"m"', "messages": TURNS, "n": text}
    generate = {"model": '"m"', "token_ids": "[1,2]", "sampling_params": f'{{"n":{text}}}'}
    for reader in READERS:
        assert read(reader, Api.CHAT, object_of(chat)).n == answers
        assert read(reader, Api.GENERATE, object_of(generate)).n == answers


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (Api.COMPLETIONS, {"prompt": "null", "prompt_embeds": '"AAAA"'}),
        (Api.COMPLETIONS, {"prompt": "[]", "prompt_embeds": '["AAAA"]'}),
        (Api.COMPLETIONS, {"prompt_embeds": '"AAAA"'}),
        (Api.SGLANG_GENERATE, {"input_embeds": "[[0.5]]"}),
        (Api.SGLANG_GENERATE, {"text": "null", "input_embeds": "[[0.5]]"}),
        (Api.RAW_PREDICT, {"prompt": "null"}),
    ],
)
def test_what_has_no_prompt_to_read_is_routed_without(api, fields):
    for reader in READERS:
        parsed = read(reader, api, object_of({"model": '"m"'} | fields))
        assert (parsed.model, parsed.prompts) == ("m", ())


def test_embeddings_of_objects_have_a_prompt():
    for item in ('{"role":"user","content":"x"}', '{"text":"x","image":"y"}'):
        for reader in READERS:
            fields = {"model": '"m"', "input": f"[{item}]"}
            (prompt,) = read(reader, Api.EMBEDDINGS, object_of(fields)).prompts
            assert b'"x"' in prompt.data


@pytest.mark.parametrize("text", ["[1.0,2]", '[1,"2"]'])
def test_token_ids_in_other_forms_are_token_ids(text):
    for reader in READERS:
        (prompt,) = read(
            reader, Api.COMPLETIONS, object_of({"model": '"m"', "prompt": text})
        ).prompts
        assert (prompt.data, prompt.exact) == (b"\1\0\0\0\2\0\0\0", True)


def test_a_text_as_a_part_is_a_part_of_text():
    plain = '[{"role":"user","content":[{"type":"text","text":"a"},{"text":"b"}]}]'
    short = '[{"role":"user","content":["a","b"]}]'
    for api in (Api.CHAT, Api.MESSAGES):
        for reader in READERS:
            one, other = (
                read(reader, api, object_of({"model": '"m"', "messages": turns}))
                for turns in (plain, short)
            )
            assert one == other


UINTS = (0, 1, 2**24, 2**24 + 1, 2**31, 2**32 - 1)


@pytest.mark.parametrize("limit", UINTS)
@pytest.mark.parametrize("size", UINTS)
def test_numbers_over_grpc(limit, size):
    media = pb.Multimodal(
        mm_placeholders=[pb.PlaceholderRange(offset=size, length=limit)], mm_hashes=["a"]
    )
    request = pb.GenerateRequest(
        tokenized=pb.Tokenized(input_ids=[1, size]),
        sampling_params=pb.Sampling(max_tokens=limit),
        mm_inputs=media.SerializeToString(),
    )
    parsed = read(READERS[0], Api.GRPC_GENERATE, framed(request.SerializeToString()))
    check_parsed(parsed)
    assert len(parsed.prompts[0].data) == 8


# Usage.

OPENAI = (
    '{"usage":{"prompt_tokens":%s,"completion_tokens":%s,'
    '"prompt_tokens_details":{"cached_tokens":%s}}}'
)
RESPONSES = (
    '{"usage":{"input_tokens":%s,"output_tokens":%s,"input_tokens_details":{"cached_tokens":%s}}}'
)
ANTHROPIC = (
    '{"usage":{"input_tokens":%s,"output_tokens":%s,'
    '"cache_read_input_tokens":%s,"cache_creation_input_tokens":%s}}'
)
SGLANG = '{"text":"","meta_info":{"prompt_tokens":%s,"completion_tokens":%s,"cached_tokens":%s}}'
USAGES = {
    Api.CHAT: OPENAI,
    Api.COMPLETIONS: OPENAI,
    Api.EMBEDDINGS: OPENAI,
    Api.GENERATE: OPENAI,
    Api.RESPONSES: RESPONSES,
    Api.MESSAGES: ANTHROPIC,
    Api.SGLANG_GENERATE: SGLANG,
}


def check_usage(usage):
    if usage is not None:
        assert 0 <= usage.prompt_tokens <= MAX_TOKENS
        assert 0 <= usage.completion_tokens <= MAX_TOKENS
        assert usage.cached_tokens is None or 0 <= usage.cached_tokens <= usage.prompt_tokens


def usage_of(reader, pieces):
    usage = None
    for piece in pieces:
        usage = merge_usage(usage, reader.feed(piece))
    return merge_usage(usage, reader.end())


@pytest.mark.parametrize("api", USAGES)
def test_usage(api):
    form, count = USAGES[api], USAGES[api].count("%s")
    places = range(count + 1)  # the last: in all of them
    for name, at, others in product(JSON | NO_JSON, places, ("9", str(MAX_TOKENS), "0")):
        value = (JSON | NO_JSON)[name]
        texts = [value if at in {place, count} else others for place in range(count)]
        data = (form % tuple(texts)).encode()
        event = b"data: " + data + b"\n\n"
        later = b"data: " + (form % tuple(others for _ in texts)).encode() + b"\n\n"
        with case(name, at, others):
            for reader in (usage_reader(api, "application/json", streaming=False), ObjectScanner()):
                check_usage(usage_of(reader, [data]))
            for pieces in ([event], [event, later], [later, event]):
                check_usage(
                    usage_of(usage_reader(api, "text/event-stream", streaming=True), pieces)
                )


@pytest.mark.parametrize("value", UINTS)
def test_usage_over_grpc(value):
    counts = {"prompt_tokens": value, "completion_tokens": value, "cached_tokens": value}
    answers = (
        (Api.GRPC_GENERATE, pb.GenerateResponse(chunk=pb.StreamChunk(**counts))),
        (Api.GRPC_GENERATE, pb.GenerateResponse(complete=pb.Complete(**counts))),
        (Api.GRPC_EMBED, pb.EmbedResponse(prompt_tokens=value)),
    )
    for api, answer in answers:
        reader = usage_reader(api, "application/grpc", streaming=True)
        check_usage(usage_of(reader, [framed(answer.SerializeToString())]))


# Load reports and pages.


def check_report(report):
    if report is not None:
        for value, most in ((report.kv_usage, 1), (report.waiting, 1e9), (report.running, 1e9)):
            assert value is None or 0 <= value <= most


@pytest.mark.parametrize("name", PLAIN | JSON)
def test_load_reports_in_headers(name):
    for metric in (*KV_USAGE, *WAITING, *RUNNING):
        for value in {(PLAIN | JSON)[name], JSON.get(name, ""), PLAIN.get(name, "")}:
            named = f'JSON {{"named_metrics":{{"{metric}":{value},"num_requests_running":1}}}}'
            check_report(parse_orca(named, RequestId("1"), Target("10.0.0.1:8000")))
            text = f"TEXT named_metrics.{metric}={value},named_metrics.num_requests_running=1"
            check_report(parse_orca(text, RequestId("1"), Target("10.0.0.1:8000")))


WHOLE = {
    "block_size": MAX_BLOCK_TOKENS,
    "num_blocks": MAX_CAPACITY_TOKENS,
    "max_tokens": MAX_CAPACITY_TOKENS,
    "match_unit": MAX_BLOCK_TOKENS,
    "offload_tokens": MAX_CAPACITY_TOKENS,
    "capacity_tokens": MAX_CAPACITY_TOKENS,
}


def check_load(load):
    assert 0 <= load.waiting <= 1e9
    assert 0 <= load.running <= 1e9
    assert 0 <= load.kv_usage <= 1
    assert 0 <= load.max_adapters <= 1e6
    assert 1 <= load.ranks <= 4096
    assert 0 < load.spread < math.inf
    for name, most in WHOLE.items():
        value = getattr(load, name)
        assert value is None or (type(value) is int and 1 <= value <= most), name
    for value in (load.cache_queries, load.cache_hits, load.started_at):
        assert value is None or 0 <= value <= MAX_VALUE


def sample(engine, metric, text, rank):
    """Write a sample whose value, or whose label, is a text."""
    pairs = dict(metric.where)
    if engine.rank:
        pairs[engine.rank] = str(rank).encode()
    if metric is engine.adapters:
        pairs |= {MAX_ADAPTERS: text, RUNNING_ADAPTERS: text}
    if metric.label:
        pairs[metric.label] = text
    joined = b",".join(
        name + b'="' + value.replace(b"\\", rb"\\").replace(b'"', rb"\"") + b'"'
        for name, value in pairs.items()
    )
    value = b"1" if metric.label else text
    return metric.family + b"{" + joined + b"} " + value + b"\n"


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_pages(engine):
    metrics = (*configuration_of(engine), *polled(engine))
    assert STARTED in metrics
    signs = [sign + b"x 1\n" for sign in engine.signs]
    good = [sample(engine, metric, b"16", 0) for metric in metrics]
    for name, odd in product(PLAIN, (*metrics, None)):  # None: all of them
        text = PLAIN[name].encode()
        page = [
            sample(engine, metric, text if odd in {metric, None} else b"16", rank)
            for metric in metrics
            for rank in (0, 1)
        ]
        with case(name, odd):
            for rank in (None, 1):
                reader = MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000, rank=rank))
                for lines in (page, good, page):
                    check_load(reader.read(Page(b"".join(lines + signs)), at=1.0).load)


@pytest.mark.parametrize("name", PLAIN)
def test_pages_of_gpus(name):
    line = DCGM.metric.family + b'{pod="a"} ' + PLAIN[name].encode() + b"\n"
    found = finish(AttributeReader((DCGM,)).steps(Page(line), "a"))
    assert all(0 <= value <= 1 for value in found.attributes.values())


@pytest.mark.parametrize("name", JSON | NO_JSON)
def test_lists_of_models(name):
    for field in ("max_model_len", "parent", "id", "created"):
        data = b'{"data":[%s,{"id":"b","parent":"m"}]}' % object_of(
            {"id": '"m"', "max_model_len": "5"} | {field: (JSON | NO_JSON)[name]}
        )
        findings = finish(ModelsReader(POD).steps(Page(data), 1.0))
        for event in findings.events:
            assert isinstance(event, ModelsListed)
            assert all(1 <= each <= MAX_CAPACITY_TOKENS for each in event.max_model_lens.values())


# Headers.


@pytest.mark.parametrize("name", PLAIN)
def test_objectives(name):
    for header in (*TTFT_HEADERS, *TPOT_HEADERS):
        request = InferenceRequest(id=RequestId("a"), headers={header: PLAIN[name]})
        assert 0 <= slo(request, TTFT_HEADERS) <= 1e9
        assert 0 <= slo(request, TPOT_HEADERS) <= 1e9


@pytest.mark.parametrize(
    "header",
    [
        *(*TTFT_HEADERS, *TPOT_HEADERS, "x-data-parallel-rank", "x-request-id"),
        *("x-llm-d-inference-objective", "x-gateway-inference-fairness-id", "priority"),
        *("x-llm-d-video-fps", "x-llm-d-video-duration-seconds", "content-length"),
        *("x-gateway-destination-endpoint-subset", "x-llm-d-model-name-rewrite"),
    ],
)
def test_headers_of_requests(header):
    for name, text in PLAIN.items():
        with case(name):
            stub = Stub()
            play(exchange(stub), [headers(**{header: text}), body(chat_body())])
            if header == "content-length":  # one that says more than the limit is refused
                assert len(stub.requests) <= 1
            else:
                (request,) = stub.requests
                assert (request.model, request.priority) == ("m", 0)


@pytest.mark.parametrize(
    "header", [":status", "grpc-status", "content-length", "retry-after", "endpoint-load-metrics"]
)
def test_headers_of_responses(header):
    end = ResponseBody(body=b"x", end_of_stream=True)
    for name, text in PLAIN.items():
        with case(name):
            stub = Stub()
            machine = exchange(stub)
            answer = ResponseHeaders(headers=OK | {header: text})
            play(machine, [headers(), body(chat_body()), answer, end])
            assert 0 <= (machine.record.status or 0) <= 999
            assert len(stub.closed) == 1


@pytest.mark.parametrize("name", PLAIN | JSON)
def test_waits_that_the_kubernetes_api_asks_for(name):
    for header in {PLAIN.get(name, ""), JSON.get(name, "")}:
        document = b'{"details":{"retryAfterSeconds":%s}}' % JSON.get(name, "1").encode()
        for answer in (b"", document, b'{"details":null}'):
            refusal = ApiRefused(read_status(429, answer, header))
            assert 0 <= refusal.retry_after <= 300
