"""What each API gets: its prompt read, its model named and rewritten, its usage found."""

import json
from typing import Any

import pytest

from epp.model.decision import Decision
from epp.model.endpoint import Endpoint
from epp.model.request import Api, Usage
from epp.protocol.bodies.apis import (
    ANTHROPIC,
    OPENAI,
    SGLANG_HTTP,
    VERTEX,
    VLLM_GRPC,
    VLLM_HTTP,
    ApiTable,
)
from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    Modes,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
)
from epp.protocol.metrics.metric_names import ENGINE_LABELS
from epp.values import replaced
from tests.protocol.extproc.conversation import (
    DUPLEX,
    OK,
    Stub,
    body,
    error_of,
    exchange,
    outcome,
    play,
    request_of,
)

ALL = ApiTable((OPENAI, ANTHROPIC, VLLM_HTTP, SGLANG_HTTP, VLLM_GRPC, VERTEX), passthrough=True)
STRICT = ApiTable((OPENAI,), passthrough=False)
REWRITE = "x-llm-d-model-name-rewrite"
DUPLEX_MODES = Modes(request=DUPLEX, response=DUPLEX)
MESSAGES: dict[str, Any] = {
    "model": "mine",
    "max_tokens": 7,
    "system": [{"type": "text", "text": "be brief"}],
    "tools": [{"name": "clock", "input_schema": {}}],
    "messages": [
        {"role": "user", "content": "what time is it?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "clock"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "9"}]},
    ],
}
MESSAGES_PROMPT = (
    b'[{"name": "clock", "input_schema": {}}][{"type": "text", "text": "be brief"}]'
    b'\n<user>"what time is it?"\n<assistant>"t""clock"\n<user>"t""9"'
)
TOKENS = b"\1\0\0\0\2\0\0\0"
BODIES = {
    "/v1/messages": (Api.MESSAGES, MESSAGES, MESSAGES_PROMPT, 7),
    "/v1/messages/count_tokens": (Api.COUNT_TOKENS, MESSAGES, None, 7),
    "/v1/chat/completions/render": (
        *(Api.CHAT_RENDER, {"model": "mine", "messages": MESSAGES["messages"][:1]}),
        *(None, None),
    ),
    "/v1/completions/render": (
        *(Api.COMPLETIONS_RENDER, {"model": "mine", "prompt": "p"}),
        *(None, None),
    ),
    "/v1/conversations": (
        *(Api.CONVERSATIONS, {"model": "mine", "items": [{"role": "user", "content": "a"}]}),
        *(b'\n<user>"a"', None),
    ),
    "/v1/images/generations": (Api.IMAGES, {"model": "mine", "prompt": "p"}, b'"p', None),
    "/inference/v1/generate": (
        Api.GENERATE,
        {"model": "mine", "token_ids": [1, 2], "sampling_params": {"max_tokens": 5}},
        *(TOKENS, 5),
    ),
    "/generate": (
        Api.SGLANG_GENERATE,
        {"model": "mine", "input_ids": [1, 2], "sampling_params": {"max_new_tokens": 5}},
        *(TOKENS, 5),
    ),
    "/v1/endpoints/e:rawPredict": (
        Api.RAW_PREDICT,
        {"model": "mine", "prompt": "p", "max_tokens": 4},
        *(b'"p', 4),
    ),
}


def head(path, **more):
    names = {":method": "POST", ":path": path, "x-request-id": "r", **more}
    return RequestHeaders(headers=names, modes=DUPLEX_MODES)


@pytest.mark.parametrize("path", BODIES)
def test_a_body_is_read_and_its_model_rewritten(path):
    api, fields, prompt, limit = BODIES[path]
    data = json.dumps(fields).encode()
    machine = exchange(apis=ALL)
    replies = play(machine, [head(path, **{REWRITE: "theirs"}), body(data)])
    (request,) = machine.stub.requests
    assert (request.api, request.model, request.target_model) == (api, "mine", "theirs")
    assert [each.data for each in request.prompts] == ([] if prompt is None else [prompt])
    assert request.max_tokens == limit
    seen = outcome(replies)
    assert seen.request == data.replace(b'"mine"', b'"theirs"')
    assert seen.set_headers["content-length"] == str(len(seen.request))
    assert REWRITE in seen.removed


@pytest.mark.parametrize("path", ["/inference/v1/generate", "/generate", "/v1/conversations"])
def test_a_body_without_a_model_is_not_refused(path):
    _, fields, prompt, _ = BODIES[path]
    for name in ({}, {"model": None}):
        data = json.dumps({key: fields[key] for key in fields if key != "model"} | name).encode()
        machine = exchange(apis=ALL)
        assert outcome(play(machine, [head(path), body(data)])).request == data
        (request,) = machine.stub.requests
        assert (request.prompts[0].data, request.model) == (prompt, "")


def test_a_name_that_the_client_did_not_send_stays_in_the_response():
    path = "/inference/v1/generate"
    fields = {key: value for key, value in BODIES[path][1].items() if key != "model"}
    machine = exchange(apis=ALL)
    play(machine, [head(path, **{REWRITE: "theirs"}), body(json.dumps(fields).encode())])
    assert machine.stub.requests[0].target_model == "theirs"
    plain = ResponseHeaders(headers=OK | {"content-type": "application/json"})
    answer = b'{"model":"theirs"}'
    seen = outcome(play(machine, [plain, ResponseBody(body=answer, end_of_stream=True)]))
    assert seen.response == answer


START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"1","model":"theirs",'
    b'"usage":{"input_tokens":9,"cache_read_input_tokens":4,"output_tokens":1}}}\n\n'
)
REST = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"hi"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":3}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


@pytest.mark.parametrize("size", [1 << 20, 50, 3])
def test_a_stream_of_anthropics_names_the_clients_model(size):
    data = START + REST
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    machine = exchange(apis=ALL)
    request = json.dumps(MESSAGES | {"stream": True}).encode()
    replies = play(
        machine,
        [
            head("/v1/messages", **{REWRITE: "theirs"}),
            body(request),
            ResponseHeaders(headers=OK),
            *(ResponseBody(body=each) for each in pieces[:-1]),
            ResponseBody(body=pieces[-1], end_of_stream=True),
        ],
    )
    assert outcome(replies).response == START.replace(b"theirs", b"mine") + REST
    assert machine.record.usage == Usage(9 + 4, 3, 4)


def test_cache_control_moves_and_the_prompt_stays():
    block = {"type": "tool_result", "tool_use_id": "t", "content": "9"}
    marked = block | {"cache_control": {"type": "ephemeral"}}
    said = {"type": "text", "text": "go on"}
    turns = [{"role": "user", "content": [marked]}]
    later = [{"role": "user", "content": [block]}, {"role": "user", "content": [said]}]
    plain = [*later[:1], {"role": "user", "content": "go on"}]
    prompts = []
    for each in (turns, later, plain):
        data = json.dumps(MESSAGES | {"messages": each}).encode()
        prompts.append(request_of(head("/v1/messages"), body(data)).prompts[0].data)
    assert prompts[1].startswith(prompts[0])
    assert prompts[2] == prompts[1]


def test_the_attribution_of_claude_code_is_left_out():
    prompts = []
    for number in (1, 2):
        billing = f"x-anthropic-billing-header: cc_version=2; cch={number};"
        system = [{"type": "text", "text": billing}, *MESSAGES["system"]]
        data = json.dumps(MESSAGES | {"system": system}).encode()
        prompts.append(request_of(head("/v1/messages"), body(data)).prompts[0].data)
    assert prompts == [MESSAGES_PROMPT, MESSAGES_PROMPT]


def asked_by_gateway(path, system):
    """What a gateway makes of a request of Claude Code: a chat, or a body of another API."""
    turn = {"role": "user", "content": "hello"}
    if path == "/v1/chat/completions":
        fields = {"messages": [{"role": "system", "content": system}, turn]}
    elif path == "/v1/messages":
        fields = {"messages": [turn], "system": system}
    else:
        fields = {"input": [turn], "instructions": system}
    return fields | {"model": "m"}


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/v1/chat/completions", False),
        ("/v1/chat/completions", True),
        ("/v1/messages", False),
        ("/v1/responses", False),
    ],
)
def test_the_line_that_gateways_make_of_the_attribution_is_left_out(path, parts):
    prompts = []
    for line in ("x-anthropic-billing-header: cch=1;", "x-anthropic-billing-header: cch=20;"):
        system = f"{line}\nYou are Claude Code."
        texts = [{"type": "text", "text": line}, {"type": "text", "text": "You are Claude Code."}]
        data = json.dumps(asked_by_gateway(path, texts if parts else system)).encode()
        prompts.append(request_of(head(path), body(data), apis=ALL).prompts[0].data)
    assert prompts[0] == prompts[1]
    assert b"You are Claude Code." in prompts[0]


@pytest.mark.parametrize("role", ["user", "assistant", "developer"])
def test_other_messages_keep_what_looks_like_the_attribution(role):
    said = {"role": role, "content": "x-anthropic-billing-header: cch=1;\nhello"}
    data = json.dumps({"model": "m", "messages": [said]}).encode()
    assert b"cch=1" in request_of(head("/v1/chat/completions"), body(data)).prompts[0].data


def test_a_picture_in_a_result_counts_as_a_picture():
    sizes = []
    for size in (10, 300_000):
        source = {"type": "base64", "media_type": "image/png", "data": "A" * size}
        block = {"type": "tool_result", "content": [{"type": "image", "source": source}]}
        data = json.dumps(MESSAGES | {"messages": [{"role": "user", "content": [block]}]}).encode()
        sizes.append(len(request_of(head("/v1/messages"), body(data)).prompts[0].data))
    assert sizes[0] == sizes[1]


def test_a_picture_is_known_by_its_uuid_as_in_vllm():
    """It need not be sent again then: `image_url` may be empty."""
    prompts = []
    for url, uuid in (("one", "a"), ("", "a"), ("one", "b"), ("one", None), ("two", None)):
        picture = {"type": "image_url", "image_url": {"url": url} if url else {}, "uuid": uuid}
        turns = [{"role": "user", "content": [picture, {"type": "text", "text": "what is it?"}]}]
        data = json.dumps({"model": "m", "messages": turns}).encode()
        (prompt,) = request_of(head("/v1/chat/completions"), body(data)).prompts
        assert prompt.multimodal
        prompts.append(prompt.data)
    assert prompts[0] == prompts[1]
    assert len({*prompts}) == 4


def test_the_same_tokens_under_other_pictures_are_another_prompt():
    data = {"token_ids": [7] * 8, "model": "m"}
    prompts = []
    for name in ("one", "two", None):
        places = {"mm_placeholders": {"image": [{"offset": 2, "length": 4}]}}
        features = places | {"mm_hashes": {"image": [name]}}
        asked = json.dumps(data | {"features": features}).encode()
        prompts.append(request_of(head("/inference/v1/generate"), body(asked)).prompts[0].data)
    plain = b"\7\0\0\0" * 8
    assert prompts[2] == plain
    assert len({*prompts}) == 3
    assert {each[:8] + each[24:] for each in prompts} == {plain[:8] + plain[24:]}


def test_extra_key_salts_the_cache():
    data = json.dumps({"text": "hi", "extra_key": "tenant"}).encode()
    assert request_of(head("/generate"), body(data), apis=ALL).cache_salt == "tenant"


def test_a_path_without_a_parser_is_refused_where_nothing_passes_through():
    status, error, _ = error_of(play(exchange(apis=STRICT), [head("/v1/messages")]))
    assert (status, error["code"]) == (400, "unknown-path")
    get = RequestHeaders(headers={":method": "GET", ":path": "/v1/models"}, end_of_stream=True)
    assert outcome(play(exchange(apis=STRICT), [get])).destination


def test_with_passthrough_alone_nothing_is_read():
    machine = exchange(apis=ApiTable((), passthrough=True))
    replies = play(machine, [head("/v1/chat/completions", **{REWRITE: "x"}), body(b"no JSON")])
    assert outcome(replies).request == b"no JSON"
    assert (machine.stub.requests[0].api, machine.stub.requests[0].model) == (Api.OTHER, "")


CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]'
PRIORITIES = {
    "added": (CHAT + b"}", CHAT + b',"priority":-5}'),
    "replaced": (CHAT + b',"priority" : 77}', CHAT + b',"priority" : -5}'),
    "null": (CHAT + b',"priority":null,"x":{"priority":1}}', None),
}


@pytest.mark.parametrize("case", PRIORITIES)
@pytest.mark.parametrize("mode", [DUPLEX, BodyMode.BUFFERED])
def test_a_priority_is_written_into_the_body(case, mode):
    data, wanted = PRIORITIES[case]
    wanted = wanted or data.replace(b"null", b"-5")
    machine = exchange(
        Stub(),
        propagate_priority=True,
        resolve=lambda request: replaced(request, priority=5),
    )
    first = replaced(head("/v1/chat/completions"), modes=Modes(request=mode))
    replies = play(machine, [first, body(data)])
    if mode is DUPLEX:
        assert outcome(replies).request == wanted
    else:
        assert [each.mutation.body for each in replies if isinstance(each, BodyReply)] == [wanted]


@pytest.mark.parametrize("label", ENGINE_LABELS)
def test_a_priority_means_the_contrary_to_vllm(label):
    pod = Endpoint("default", "p", "10.0.0.1", 8000, {label: "sglang"})
    machine = exchange(
        Stub(Decision(endpoints=(pod,))),
        propagate_priority=True,
        resolve=lambda request: replaced(request, priority=5, target_model="n"),
    )
    replies = play(machine, [head("/v1/chat/completions"), body(CHAT + b"}")])
    wanted = CHAT.replace(b'"m"', b'"n"') + b',"priority":5}'
    assert outcome(replies).request == wanted
