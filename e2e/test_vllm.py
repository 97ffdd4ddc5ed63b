"""Real vLLM on the CPU: its own word for what was cached, beside what the picker predicted."""

import asyncio
import itertools
import sys
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from e2e.corridor import CHAT, Plan, chat, corridor, decision
from epp.gateway.processes import spawn

pytestmark = pytest.mark.vllm
MODEL = "small"
FOLDER = Path(__file__).parents[1] / ".cache" / "models" / MODEL
BUILD_SECONDS = 120
BLOCK = 32
FLAGS = {
    "--served-model-name": MODEL,
    "--block-size": str(BLOCK),
    "--num-gpu-blocks": "1024",
    "--max-model-len": "8192",
}
DOCUMENT = "The keeper of the lighthouse counted {} boats on the {} day and wrote it down. "


async def build_model(directory):
    """Build the model where it is not there yet; it is kept for the next run."""
    argv = [sys.executable, "-m", "model_server.tiny_model", str(FOLDER), "--size", MODEL]
    builder = await spawn("build", argv, log_dir=directory)
    assert await builder.wait_exit(BUILD_SECONDS) == 0, builder.log_path.read_text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory):
    directory = tmp_path_factory.mktemp("vllm")
    await build_model(directory)
    flags = tuple(word for pair in FLAGS.items() for word in pair)
    launch = (sys.executable, "-m", "model_server.launch", str(FOLDER), *flags)
    plan = Plan(simulators=("a", "b"), argv=launch, stop_seconds=20, stream_idle_timeout_s=60)
    async with corridor(plan, directory) as made:
        yield made


async def cache_hits(gateway, target):
    """How many tokens a server says it found in its cache so far."""
    async with gateway.client.get(f"http://{target}/metrics") as response:
        page = await response.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "vllm:prefix_cache_hits_total"
    )


def document(topic):
    return "".join(DOCUMENT.format(topic + number, number * 7) for number in range(40))


def ask(*texts, **options):
    return chat(*texts, model=MODEL, temperature=0, max_tokens=16, **options)


def report(capsys, what, said, usage):
    """Show what was predicted beside what vLLM says."""
    with capsys.disabled():
        sys.stdout.write(
            f"\n  {what}: vLLM {usage['prompt_tokens_details']['cached_tokens']} cached of "
            f"{usage['prompt_tokens']} tokens; predicted {said['predicted_cached_tokens']}"
            f" of {said['prompt_tokens']}"
        )


async def asked_of_all(gateway):
    """Ask about other documents until every server has answered about one."""
    topics, used = itertools.count(2000, 1000), set[str]()
    while used != set(gateway.targets.values()):
        others = [gateway.post(CHAT, ask(document(next(topics)))) for _ in range(4)]
        answers = await asyncio.gather(*others)
        assert [answer.status for answer in answers] == [200] * len(others)
        used |= {decision(answer)["endpoint"] for answer in answers}


async def test_a_conversation_returns_to_the_server_that_has_it_cached(gateway, capsys):
    text = document(1000)
    first = await gateway.post(CHAT, ask(text))
    assert first.status == 200, first.body
    home = decision(first)["endpoint"]
    usage = first.json["usage"]
    report(capsys, "first turn", decision(first), usage)
    assert usage["prompt_tokens"] > 10 * BLOCK
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0

    await asked_of_all(gateway)
    turns = [text, first.json["choices"][0]["message"]["content"], "And what did he see then?"]
    hits = await cache_hits(gateway, home)
    second = await gateway.post(CHAT, ask(*turns))
    said, usage = decision(second), second.json["usage"]
    report(capsys, "second turn", said, usage)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert said["endpoint"] == home
    assert await cache_hits(gateway, home) == hits + cached
    assert cached >= first.json["usage"]["prompt_tokens"] // BLOCK * BLOCK
    assert_predicted(said, usage)

    # The third is streamed, and tells as much.
    turns += [second.json["choices"][0]["message"]["content"], "And then?"]
    body = ask(*turns, stream=True, stream_options={"include_usage": True})
    third = await gateway.post(CHAT, body)
    said, usage = decision(third), third.events[-1]["usage"]
    report(capsys, "third turn, streamed", said, usage)
    assert said["endpoint"] == home
    assert usage["prompt_tokens_details"]["cached_tokens"] >= cached
    assert_predicted(said, usage)


def assert_predicted(said, usage):
    """The picker reads bytes, not tokens: it knows where text repeats, and learns its density.

    The generated text between two turns, and each end of what repeats, may be judged wrongly by
    a block; the density, learned from the very text that repeats, by a few per cent.
    """
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert abs(said["predicted_cached_tokens"] - cached) <= 2 * BLOCK + 0.05 * cached
    assert abs(said["prompt_tokens"] - usage["prompt_tokens"]) <= 0.1 * usage["prompt_tokens"]


async def test_the_metrics_page_has_both_sides(gateway, capsys):
    name, count = "warmpick_{}_cached_tokens_{}", await gateway.metric("llm_d_epp_request_total")
    await gateway.metric_becomes(count, name.format("actual", "count"))
    predicted = await gateway.metric(name.format("predicted", "sum"))
    actual = await gateway.metric(name.format("actual", "sum"))
    with capsys.disabled():
        sys.stdout.write(
            f"\n  all {count:.0f} requests: vLLM {actual:.0f}, predicted {predicted:.0f}\n"
        )
    assert actual > 0
    assert abs(predicted - actual) <= count * BLOCK + 0.05 * actual


async def test_vllms_own_errors_reach_the_client(gateway):
    unknown = await gateway.post(CHAT, ask("hello") | {"model": "nobody"})
    assert (unknown.status, unknown.json["error"]["code"]) == (404, 404)
    long = await gateway.post(CHAT, ask("many words " * 20_000))
    assert long.status == 400
    assert "8192" in long.message
    models = await gateway.get("/v1/models")
    assert [model["id"] for model in models.json["data"]] == [MODEL]
