"""The launcher with real vLLM on a CPU and the tiny model."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import psutil
import pytest

from .launched import all_gone, eventually

pytestmark = pytest.mark.vllm
BLOCK = 32
BLOCKS = 257
START_SECONDS = 240
FILES = ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja")


def start(module, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", f"model_server.{module}", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process):
    """What a process that succeeds had to say."""
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The tiny model, built by two processes at the same time."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    builders = [start("tiny_model", folder, "--size", "tiny") for _ in range(2)]
    assert all(str(folder) in said(builder) for builder in builders)
    return folder


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    flags = {
        "--num-gpu-blocks": BLOCKS,
        "--max-model-len": 4096,
        "--drain-seconds": 60,
        "--log-file": log,
    }
    launcher = start("launch", tiny, *(word for pair in flags.items() for word in pair))
    line = launcher.stdout.readline()
    if not line:
        pytest.fail(launcher.communicate()[1])
    event = json.loads(line)
    yield launcher, f"http://{event['host']}:{event['port']}"
    if launcher.poll() is None:
        launcher.terminate()
    launcher.communicate()


def complete(prompt, **more):
    return {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True} | more


async def test_the_same_recipe_gives_the_same_bytes(tiny, tmp_path):
    assert "built in" in said(start("tiny_model", tmp_path / "again", "--size", "tiny"))
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (tiny / name).read_bytes(), name
    assert "already there" in said(start("tiny_model", tiny, "--size", "tiny"))


async def test_the_second_turn_hits_every_full_block_of_the_first(server):
    prompt, answer = list(range(100, 300)), 40
    async with aiohttp.ClientSession(server[1]) as session:

        async def ask(ids):
            body = complete(ids, max_tokens=answer, return_token_ids=True)
            async with session.post("/v1/completions", json=body) as response:
                assert response.status == 200
                return await response.json()

        first = await ask(prompt)
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        both = [*prompt, *first["choices"][0]["token_ids"]]
        second = await ask([*both, 7, 8, 9])
    # vLLM never computes the KV of the last sampled token: (P + G - 1) // block full blocks.
    expected = (len(both) - 1) // BLOCK * BLOCK
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == expected


async def test_a_stream_reports_cached_tokens_in_its_last_chunk(server):
    messages = [{"role": "user", "content": "def main(arguments): " * 40}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 4, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    cached = []
    async with aiohttp.ClientSession(server[1]) as session:
        for _ in range(2):
            async with session.post("/v1/chat/completions", json=body) as response:
                events = (await response.text()).strip().split("\n\n")
            assert events[-1] == "data: [DONE]"
            last = json.loads(events[-2].removeprefix("data: "))
            assert last["choices"] == []
            cached.append(last["usage"]["prompt_tokens_details"]["cached_tokens"])
            prompt = last["usage"]["prompt_tokens"]
    assert cached == [0, (prompt - 1) // BLOCK * BLOCK]


@pytest.mark.parametrize(("form", "prefix"), [("JSON", "JSON {"), ("TEXT", "TEXT named_metrics.")])
async def test_orca_comes_with_whole_responses_only(server, form, prefix):
    header = {"endpoint-load-metrics-format": form}
    async with aiohttp.ClientSession(server[1], headers=header) as session:
        body = complete("x", max_tokens=2)
        async with session.post("/v1/completions", json=body) as response:
            report = response.headers["endpoint-load-metrics"]
        async with session.post("/v1/completions", json=body | {"stream": True}) as response:
            assert "endpoint-load-metrics" not in response.headers
            await response.read()
    assert report.startswith(prefix)
    assert "kv_cache_usage_perc" in report
    assert "num_requests_waiting" in report


async def test_metrics_tell_the_cache_and_the_start(server):
    async with aiohttp.ClientSession(server[1]) as session, session.get("/metrics") as response:
        metrics = await response.text()
    (cache,) = [x for x in metrics.splitlines() if x.startswith("vllm:cache_config_info{")]
    for label in (f'num_gpu_blocks="{BLOCKS}"', f'block_size="{BLOCK}"', '="sha256"'):
        assert label in cache
    assert "\nprocess_start_time_seconds " in metrics


async def test_sigterm_lets_a_running_stream_finish_and_leaves_nothing(server):
    launcher, url = server
    processes = psutil.Process(launcher.pid).children(recursive=True)
    assert len(processes) >= 3
    body = complete("def main", max_tokens=1500, stream=True)
    async with (
        aiohttp.ClientSession(url) as session,
        session.post("/v1/completions", json=body) as response,
    ):
        await response.content.readline()
        launcher.send_signal(signal.SIGTERM)
        rest = (await response.text()).strip()
    assert rest.endswith("data: [DONE]")
    assert '"finish_reason":"length"' in rest
    assert launcher.wait() == 0
    eventually(lambda: all_gone(processes))


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    builder = start("tiny_model", tmp_path, "--size", "tiny")
    _, errors = builder.communicate()
    assert builder.returncode == 1
    assert "is not empty" in errors
    assert [path.name for path in Path(tmp_path).iterdir()] == ["thesis.txt"]
