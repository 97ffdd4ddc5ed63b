"""Real vLLM's own tokens: of its render server, its tokenizers, and what a server then counts."""

import asyncio
import json
import sys
from collections import Counter
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from e2e import test_vllm
from e2e.chat_bodies import BODIES, TEMPLATES, TEXT
from e2e.corridor import CHAT, Plan, chat, corridor, decision, quiet_port
from e2e.serving import serving
from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.adapters.tokens.local.model_folder import read_folder
from epp.adapters.tokens.local.plan import complete, pieces_of, plan
from epp.adapters.tokens.local.template import ChatTemplate
from epp.adapters.tokens.render.render_server import RenderSettings
from epp.adapters.tokens.render.render_tokenizer import RenderTokenizer
from epp.gateway.processes import spawn
from epp.model.request import Api, InferenceRequest, Prompt
from epp.values import replaced
from tests.adapters.tokens import bodies
from tests.adapters.tokens.folders import KINDS, texts, write

pytestmark = pytest.mark.vllm
MODEL, FOLDER, BLOCK = "tiny", test_vllm.FOLDER, test_vllm.BLOCK
START_SECONDS = 120
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
EASY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


class Renderer:
    """`vllm launch render`, which has no engine, and a client."""

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self.url = url
        self.client = client

    async def ask(self, path, body):
        async with self.client.post(self.url + path, json=body) as response:
            return response.status, await response.json()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A file of a chat template that prints all that it is given."""
    path = tmp_path_factory.mktemp("template") / "everything.jinja"
    path.write_text(TEMPLATES["everything"])
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def renderer(tmp_path_factory, template):
    directory = tmp_path_factory.mktemp("render")
    await test_vllm.build_model(directory)
    port = quiet_port()
    command = ("-m", "vllm.entrypoints.cli.main", "launch", "render", str(FOLDER))
    flags = ("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port))
    templates = ("--trust-request-chat-template", "--chat-template", str(template))
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    argv = [sys.executable, *command, *flags, *templates, *tools]
    server = await spawn("render", argv, log_dir=directory, env=QUIET)
    async with aiohttp.ClientSession() as client:
        try:
            await server.wait_http(f"http://127.0.0.1:{port}/health", START_SECONDS)
            yield Renderer(f"http://127.0.0.1:{port}", client)
        finally:
            await server.stop(20)


@pytest.fixture(scope="module")
def folder(template):
    return read_folder(FOLDER, template)


def tokens(asked: InferenceRequest, folder):
    """The ids of each prompt, or why there are none."""
    try:
        drafts = plan(asked, folder)
    except TextFallback as reason:
        return reason
    ids = folder.vocabulary.encode(list(pieces_of(drafts)))
    return [bodies.ids(prompt) for prompt in complete(drafts, ids)]


def with_template(folder, text):
    return replace(folder, template=ChatTemplate({"default": text}, {"eos_token": "<|im_end|>"}))


def kept(body) -> InferenceRequest:
    """A request whose prompts as text do not matter."""
    data = json.dumps(body).encode()
    text = (Prompt(b""),)
    return replaced(bodies.chat("x"), body=data, prompts=text, model=MODEL, target_model=MODEL)


@pytest.mark.parametrize("name", TEMPLATES)
async def test_chats_are_rendered_and_tokenized_as_by_vllm(renderer, folder, name, capsys):
    outcomes: Counter[str] = Counter()
    own = with_template(folder, TEMPLATES[name])
    loop = asyncio.get_running_loop()

    @EASY
    @given(body=BODIES)
    def agree(body):
        answer = asyncio.run_coroutine_threadsafe(
            renderer.ask("/v1/chat/completions/render", body | {"chat_template": TEMPLATES[name]}),
            loop,
        )
        status, rendered = answer.result(30)
        made = tokens(kept(body), own)
        if status != 200:
            outcomes["refused"] += 1  # then it does not matter what was made of it
            return
        outcomes["equal"] += 1
        assert made == [rendered["token_ids"]], body

    await asyncio.to_thread(agree)
    with capsys.disabled():
        sys.stdout.write(f"\n  {name}: {dict(outcomes)}")
    assert outcomes["equal"] >= 10


@pytest.mark.parametrize("name", TEMPLATES)
async def test_tokenize_is_asked_for_what_render_says(renderer, name):
    """A server without a render endpoint, as `vllm serve` is by default."""

    async def without_render(http):
        if http.path != "/tokenize":
            return web.json_response({"error": "Forbidden"}, status=403)
        status, answer = await renderer.ask(http.path, await http.json())
        return web.json_response(answer, status=status)

    outcomes: Counter[str] = Counter()
    loop = asyncio.get_running_loop()

    @EASY
    @given(body=BODIES)
    def agree(body):
        own = body | {"chat_template": TEMPLATES[name]}
        rendering = renderer.ask("/v1/chat/completions/render", own)
        answer = asyncio.run_coroutine_threadsafe(rendering, loop)
        making = asyncio.run_coroutine_threadsafe(tokenizer.tokenize(kept(own)), loop)
        (status, rendered), made = answer.result(30), making.result(30)
        if status != 200:
            outcomes["refused"] += 1
            return
        outcomes["equal"] += 1
        assert [bodies.ids(prompt) for prompt in made] == [rendered["token_ids"]], body

    async with serving(without_render) as target:
        tokenizer = RenderTokenizer(RenderSettings(url=f"http://{target}", model=MODEL))
        await asyncio.to_thread(agree)
        await tokenizer.close()
    assert outcomes["equal"] >= 10


TOOL = {"name": "f", "input_schema": {"properties": {"a": {}}}}
ASKS = {"role": "user", "content": [{"type": "text"}, {"type": "text", "text": "the keeper"}]}
CALLS = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "für"}}
HIDDEN = [{"type": "thinking", "thinking": ""}, {"type": "text", "text": "So."}, CALLS]
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "1729"}]}
CHANGE = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "g"}}
MESSAGES: dict[str, dict[str, Any]] = {
    "no tools": {"tools": []},
    "options": {"tools": [TOOL | {"strict": True}, TOOL | {"name": "g", "defer_loading": True}]},
    "removed": {
        "tools": [TOOL, TOOL | {"name": "g"}],
        "messages": [ASKS, {"role": "system", "content": [CHANGE]}],
    },
    "effort": {"output_config": {"effort": "high"}, "system": [{"type": "text", "text": "东"}]},
    "no thinking": {"thinking": {"type": "disabled"}},
    "thoughts": {
        "tools": [TOOL],
        "messages": [
            ASKS,
            {"role": "assistant", "content": HIDDEN},
            {"role": "user", "content": [RESULT]},
        ],
    },
}
"""Anthropic's requests, as far as they are not a question."""


@pytest.mark.parametrize("name", MESSAGES)
async def test_messages_are_rendered_and_tokenized_as_by_vllm(renderer, folder, name):
    body = {"model": MODEL, "max_tokens": 9, "messages": [ASKS]} | MESSAGES[name]
    status, rendered = await renderer.ask("/v1/messages/render", body)
    assert status == 200, rendered
    asked = replaced(kept(body), api=Api.MESSAGES)
    assert tokens(asked, folder) == [rendered["token_ids"]]


async def test_completions_are_tokenized_as_by_vllm(renderer, folder):
    loop = asyncio.get_running_loop()

    @EASY
    @given(prompts=st.lists(TEXT.filter(bool), min_size=1, max_size=3), special=st.booleans())
    def agree(prompts, special):
        body = {"model": MODEL, "prompt": prompts, "add_special_tokens": special}
        answer = asyncio.run_coroutine_threadsafe(
            renderer.ask("/v1/completions/render", body), loop
        )
        status, rendered = answer.result(30)
        assert status == 200, rendered
        made = tokens(bodies.completions(prompts, add_special_tokens=special), folder)
        assert made == [each["token_ids"] for each in rendered]

    await asyncio.to_thread(agree)


async def test_the_render_server_is_understood(renderer, folder):
    tokenizer = RenderTokenizer(RenderSettings(url=renderer.url, model=MODEL))
    asked = [
        bodies.chat("hello", "who", "the keeper"),
        bodies.completions(["the keeper", "of the lighthouse"]),
        bodies.completions("the keeper", add_special_tokens=False),
    ]
    for each in asked:
        assert tokenizer.ready(each) is None
        prompts = await tokenizer.tokenize(each)
        assert [bodies.ids(prompt) for prompt in prompts] == tokens(each, folder)
    (prompt,) = await tokenizer.tokenize(bodies.asked(Api.RESPONSES, input="hello"))
    assert [bodies.ids(prompt)] == tokens(bodies.chat("hello"), folder)
    refused = bodies.chat("x", tools=[])
    assert await tokenizer.tokenize(refused) is refused.prompts
    assert tokenizer.counts == {FallbackCause.REFUSED: 1}
    await tokenizer.close()


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bos": {"add_bos_token": True, "bos_token": "<s>"},
    "no bos": {"add_bos_token": False, "bos_token": "<s>"},
    "named": {"bos_token": {"content": "<new>", "__type": "AddedToken", "normalized": False}},
    "listed": {"added_tokens_decoder": {"700": {"content": "<new>", "special": True}}},
    "further": {"extra_special_tokens": ["<new>"], "additional_special_tokens": ["<more>"]},
    "as text": {"split_special_tokens": True},
}


LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "<s>"}
CLASSES: dict[tuple[str, str], dict[str, Any]] = {
    ("byte level", "qwen2"): {},
    ("split, bytes, start", "qwen2"): {"tokenizer_class": "Qwen2Tokenizer"},
    ("byte level, prefix", "qwen3"): {"tokenizer_class": "Qwen2Tokenizer"},
    ("long words", "qwen3"): {"tokenizer_class": "Qwen2Tokenizer"},
    ("long words", "qwen3_5"): {"tokenizer_class": "Qwen2Tokenizer"},
    ("long words", "qwen3_5_moe"): {},
    ("byte level", "llama"): {},
    ("prepended", "llama"): LLAMA | {"legacy": False},
    ("metaspace never", "llama"): LLAMA | {"legacy": True},
    ("metaspace always", "llama"): LLAMA | {"add_prefix_space": False},
    ("metaspace first", "mistral"): LLAMA | {"legacy": True},
}
"""Kinds of tokenizers with the type of the model, which may know better."""


@pytest.mark.parametrize("kind", KINDS)
def test_folders_are_read_as_by_vllm(tmp_path, kind, monkeypatch):
    for name, configuration in CONFIGURATIONS.items():
        path = write(tmp_path / name, KINDS[kind](), **configuration)
        (path / "config.json").write_text('{"model_type": "llama"}')
        compare(path, monkeypatch)


@pytest.mark.parametrize(("kind", "model"), CLASSES, ids=str)
def test_folders_of_some_classes_are_read_as_by_vllm(tmp_path, kind, model, monkeypatch):
    path = write(tmp_path / "m", KINDS[kind](), **CLASSES[kind, model])
    (path / "config.json").write_text(json.dumps({"model_type": model}))
    compare(path, monkeypatch)


def compare(path, monkeypatch):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    from vllm.tokenizers import get_tokenizer  # noqa: PLC0415 (only where it is installed)

    theirs, ours = get_tokenizer(str(path)), read_folder(path).vocabulary
    sample = [*texts(), "<new>", "<more>"]

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(text=st.lists(st.sampled_from(sample), max_size=10).map("".join))
    def agree(text):
        packed = ours.encode([text])[text], bodies.whole(ours, text)
        assert [bodies.ids(Prompt(ids, exact=True)) for ids in packed] == [
            theirs.encode(text, add_special_tokens=special) for special in (False, True)
        ]

    agree()


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(tmp_path):
    await test_vllm.build_model(tmp_path)
    flags = tuple(word for pair in test_vllm.FLAGS.items() for word in pair)
    launch = (sys.executable, "-m", "model_server.launch", str(FOLDER), *flags)
    producer = {"type": "token-producer", "parameters": {"tokenizer": str(FOLDER)}}
    config = json.dumps({"plugins": [{"type": "least-ttft-picker"}, producer]})
    own = ("--config-text", config)
    plan = Plan(
        simulators=("a",), argv=launch, stop_seconds=20, stream_idle_timeout_s=60, picker_flags=own
    )
    async with corridor(plan, tmp_path) as made:
        yield made


async def test_what_vllm_counts_was_known_to_the_token(gateway, capsys):
    """One server, one request after the other: lengths are exact, and so are hits."""
    turns, told = [], []
    for turn in range(4):
        turns.append(test_vllm.document(1000 * (turn + 1)) if turn % 2 == 0 else "And then?")
        answer = await gateway.post(CHAT, test_vllm.ask(*turns))
        assert answer.status == 200, answer.body
        said, usage = decision(answer), answer.json["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        told.append((said["prompt_tokens"], said["predicted_cached_tokens"]))
        with capsys.disabled():
            sys.stdout.write(f"\n  predicted {told[-1]}, vLLM {usage['prompt_tokens'], cached}")
        assert told[-1][0] == usage["prompt_tokens"]
        turns.append(answer.json["choices"][0]["message"]["content"])
        hidden = usage["completion_tokens"] // BLOCK + 1  # blocks of what was generated
        assert told[-1][1] <= cached <= told[-1][1] + hidden * BLOCK
    assert told[-1][1] > 0
    again = await gateway.post(CHAT, test_vllm.ask(*turns[:-1]))
    said, usage = decision(again), again.json["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert (said["prompt_tokens"], said["predicted_cached_tokens"]) == (
        usage["prompt_tokens"],
        cached,
    )
    log = gateway.picker.log_path.read_text()
    assert "tokens.differ" not in log
    assert "tokens.text_instead" not in log


async def test_a_tokenizer_that_is_not_there_does_not_matter(start):
    producer = {"type": "token-producer", "parameters": {"tokenizer": "/nowhere"}}
    config = json.dumps({"plugins": [{"type": "least-ttft-picker"}, producer]})
    async with start(Plan(simulators=("a",), picker_flags=("--config-text", config))) as made:
        answer = await made.post(CHAT, chat("hello"))
        assert answer.status == 200
        assert "tokens.not_loaded" in made.picker.log_path.read_text()
