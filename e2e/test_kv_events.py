"""The simulator's KV events: what they say is in the cache is what is then hit."""

import pytest_asyncio

from e2e.kv_engine import Followed, Traffic, listening, running, simulator


@pytest_asyncio.fixture(loop_scope="module")
async def followed():
    async with listening(Followed("sim-model")) as made:
        yield made


async def test_what_events_say_is_what_is_hit_and_a_restart_is_seen(followed, tmp_path):
    argv = simulator(followed.model, followed.ports)
    async with running(followed, argv, tmp_path) as engine:
        traffic = Traffic(engine, seed=1)
        await traffic.flow(workers=4, steps=20)
        compared = [await engine.compare(*probe) for probe in traffic.probes(12)]
        assert [predicted for predicted, _ in compared] == [actual for _, actual in compared]
        assert sum(actual for _, actual in compared) > 0
        assert followed.complete
        assert (followed.mirror.counts.lost, followed.mirror.counts.unknown) == (0, 0)
        assert followed.mirror.counts.removed > 100
        await engine.stop(0)
    async with running(followed, argv, tmp_path) as engine:
        await followed.until(lambda: not len(followed.mirror._blocks))
        again = [await engine.compare(*probe) for probe in traffic.probes(6)]
        assert again[0] == (0, 0)
        assert [predicted for predicted, _ in again] == [actual for _, actual in again]
