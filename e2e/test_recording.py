"""A recording of real traffic through Envoy, and replay's reading of it; a shadow beside it."""

import asyncio
import gzip
import json
import signal

import pytest_asyncio

from e2e.corridor import CHAT, WATCHED, Plan, chat, corridor, until
from epp.model.request import TOKEN_BYTES
from epp.replay.traffic.calls import joined, packed, tokens_in
from epp.replay.traffic.reading import read

DOCUMENT = "The harbour master wrote down every ship that came in before the fog. " * 40
OTHER = "Nobody had told the gardener that the wall would be moved in spring. " * 40
TENANT = "ann-of-the-harbour"
FAIRNESS = "x-llm-d-inference-fairness-id"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recorded(tmp_path_factory):
    """A recording of two conversations and a broken request; give its folder and the usages."""
    folder = tmp_path_factory.mktemp("recording")
    flags = (f"--record={folder}", "--shadow=round-robin", *WATCHED)
    plan = Plan(simulators=("a", "b"), server_flags=("--speed", "20"), picker_flags=flags)
    async with corridor(plan, tmp_path_factory.mktemp("corridor")) as gateway:
        answers = []
        for text in (DOCUMENT, OTHER):
            first = await gateway.post(CHAT, chat(text, max_tokens=24), **{FAIRNESS: TENANT})
            reply = first.json["choices"][0]["message"]["content"]
            second = await gateway.post(CHAT, chat(text, reply, "And then?", max_tokens=3))
            answers += [first, second]
        refused = await gateway.post(CHAT, b'{"model": "sim-model", "messages": 3}')
        assert refused.status == 400
        compared = await gateway.metric("warmpick_shadow_decisions_total")
        failed = await gateway.metric("warmpick_shadow_decisions_total", outcome="failed")
        assert (compared, failed) == (4, 0)
        await gateway.metric_becomes(5, "warmpick_recorded_requests_total", outcome="written")
        gateway.signal(gateway.picker, signal.SIGTERM)
        await until(lambda: _ended(gateway.picker))
        yield folder, [answer.json["usage"] for answer in answers], gateway


async def _ended(process):
    await asyncio.sleep(0)
    return not process.alive()


def _lines(folder):
    (part,) = folder.iterdir()
    return [json.loads(line) for line in gzip.decompress(part.read_bytes()).splitlines()]


async def test_each_request_is_there_as_the_server_reported_it(recorded):
    folder, usages, gateway = recorded
    header, *lines = _lines(folder)
    assert (header["kind"], header["configuration"]) == ("header", "least-ttft")
    requests = [line for line in lines if line["kind"] == "request"]
    *served, refused = requests
    assert [line["prompt_tokens"] for line in served] == [each["prompt_tokens"] for each in usages]
    assert [line["generated_tokens"] for line in served] == [24, 3, 24, 3]
    assert [line["cached_tokens"] for line in served] == [
        each["prompt_tokens_details"]["cached_tokens"] for each in usages
    ]
    assert {line["outcome"] for line in served} == {"completed"}
    assert {line["endpoint"] for line in served} <= {"default/a", "default/b"}
    assert [line["status"] for line in served] == [200] * 4
    for line in served:
        assert 0 <= line["decided"] <= line["first"] <= line["end"]
    assert (refused["outcome"], "prompts" in refused) == ("rejected", False)
    assert refused["reason"] == "malformed-request"
    pools = [line["endpoints"] for line in lines if line["kind"] == "endpoints"]
    assert {each["id"] for each in pools[-1]} == {"default/a", "default/b"}
    assert all(each["block_tokens"] == 16 for each in pools[-1])
    assert gateway is not None


async def test_no_word_of_a_client_is_in_it(recorded):
    folder, _, _ = recorded
    text = json.dumps(_lines(folder))
    assert not [word for word in ("harbour", "gardener", "And then", TENANT) if word in text]


async def test_replay_reads_the_conversations_again(recorded):
    folder, usages, _ = recorded
    trace = read(folder, strict=True)
    assert [tokens_in(call.prompt) for call in trace.calls] == [
        each["prompt_tokens"] for each in usages
    ]
    assert [tokens_in(call.response) for call in trace.calls] == [24, 3, 24, 3]
    assert [call.after for call in trace.calls] == [None, 0, None, 2]
    for first, second in ((0, 1), (2, 3)):
        before, after = trace.calls[first], trace.calls[second]
        said, prompt = packed(joined(before.prompt, before.response)), packed(after.prompt)
        pairs = enumerate(zip(said, prompt, strict=False))
        alike = next((n for n, (a, b) in pairs if a != b), len(said)) // TOKEN_BYTES
        # How long the answer is in the next prompt is estimated from its bytes.
        assert tokens_in(before.prompt) + 12 < alike <= len(said) // TOKEN_BYTES
