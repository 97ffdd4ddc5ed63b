"""Real vLLM with two data-parallel engines behind one port: what its page means, where it hits."""

import asyncio
import sys

import pytest
import pytest_asyncio

from e2e import test_vllm
from e2e.corridor import CHAT, Plan, corridor, decision
from e2e.test_ranks import split_into_ranks
from epp.model.endpoint import Endpoint
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.page import Page

pytestmark = pytest.mark.vllm
BLOCK, BLOCKS, RANKS = 32, 512, 2
CAPACITY = "warmpick_endpoint_cache_capacity_tokens"
FLAGS = {
    "--served-model-name": test_vllm.MODEL,
    "--block-size": str(BLOCK),
    "--num-gpu-blocks": str(BLOCKS),
    "--max-model-len": "8192",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranks")
    await test_vllm.build_model(directory)
    flags = (word for pair in FLAGS.items() for word in pair)
    more = ("--", "--data-parallel-size", str(RANKS))
    argv = (sys.executable, "-m", "model_server.launch", str(test_vllm.FOLDER), *flags, *more)
    async with corridor(
        Plan(simulators=("dp",), argv=argv, stop_seconds=20, stream_idle_timeout_s=60), directory
    ) as made:
        await split_into_ranks(made, made.targets["dp"], RANKS)
        # What is admitted before the first scrape is modelled in blocks of another size.
        await made.metric_becomes(RANKS * (BLOCKS - 1) * BLOCK, CAPACITY)
        yield made


async def load_of(gateway, rank):
    """Read what the server says of one engine, or of all."""
    async with gateway.client.get(f"http://{gateway.targets['dp']}/metrics") as response:
        page = Page(await response.read())
    host, port = gateway.targets["dp"].split(":")
    reading = MetricsReader(Endpoint("default", "dp", host, int(port), rank=rank)).read(page, 0)
    assert reading.warnings == ()
    return reading.load


async def test_each_rank_has_its_share_of_the_blocks(gateway):
    whole = await load_of(gateway, None)
    assert (whole.ranks, whole.num_blocks) == (RANKS, RANKS * BLOCKS)
    assert whole.capacity_tokens == RANKS * (BLOCKS - 1) * BLOCK
    for rank in range(RANKS):
        load = await load_of(gateway, rank)
        assert (load.ranks, load.num_blocks, load.block_size) == (1, BLOCKS, BLOCK)
        assert load.capacity_tokens == (BLOCKS - 1) * BLOCK
        assert load.spread == 1.0


async def test_every_conversation_returns_to_its_rank(gateway):
    texts = [test_vllm.document(1000 * number) for number in range(1, 7)]
    firsts = await asyncio.gather(*(gateway.post(CHAT, test_vllm.ask(text)) for text in texts))
    asked = [(await load_of(gateway, rank)).cache_queries for rank in range(RANKS)]
    assert all(asked), asked
    for text, first in zip(texts, firsts, strict=True):
        answer = first.json["choices"][0]["message"]["content"]
        second = await gateway.post(CHAT, test_vllm.ask(text, answer, "And what then?"))
        usage = second.json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= (
            first.json["usage"]["prompt_tokens"] // BLOCK * BLOCK
        )
        test_vllm.assert_predicted(decision(second), usage)
