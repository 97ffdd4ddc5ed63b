"""Real vLLM's KV events: what they say is in the cache is what vLLM then hits."""

import sys

import pytest
import pytest_asyncio

from e2e import test_vllm
from e2e.kv_engine import Followed, Traffic, launcher, listening, running

pytestmark = pytest.mark.vllm


@pytest_asyncio.fixture(loop_scope="module")
async def followed():
    async with listening(Followed(test_vllm.MODEL)) as made:
        yield made


def report(capsys, what, compared):
    with capsys.disabled():
        predicted, actual = (sum(side) for side in zip(*compared, strict=True))
        sys.stdout.write(f"\n  {what}: predicted {predicted} cached tokens, vLLM hit {actual}")


async def test_what_events_say_is_what_is_hit_and_a_restart_is_seen(followed, tmp_path, capsys):
    await test_vllm.build_model(tmp_path)
    argv = launcher(test_vllm.FOLDER, followed.model, followed.ports)
    async with running(followed, argv, tmp_path) as engine:
        traffic = Traffic(engine, seed=1)
        await traffic.flow(workers=4, steps=20)
        compared = [await engine.compare(*probe) for probe in traffic.probes(12)]
        report(capsys, f"{len(compared)} prompts after traffic", compared)
        assert [predicted for predicted, _ in compared] == [actual for _, actual in compared]
        assert sum(actual for _, actual in compared) > 0
        assert followed.complete
        assert (followed.mirror.counts.lost, followed.mirror.counts.unknown) == (0, 0)
        assert followed.mirror.counts.removed > 100
        await engine.stop(20)
    async with running(followed, argv, tmp_path) as engine:
        await followed.until(lambda: not len(followed.mirror._blocks))
        again = [await engine.compare(*probe) for probe in traffic.probes(6)]
        report(capsys, f"{len(again)} prompts after a restart", again)
        assert again[0] == (0, 0)
        assert [predicted for predicted, _ in again] == [actual for _, actual in again]
