"""The benchmark of routers' own programs: what a run of one gives."""

import pytest

from bench.child import MeasurementFailed
from bench.programs import KINDS, least_request, run, warmpick
from epp.demo.pools import Size, choose_pool
from epp.demo.workload import conversations, shipped_sections


def small(folder):
    pool = choose_pool("simulator", Size(servers=2, seconds=1.0, conversations=2), folder)
    return pool, conversations(shipped_sections(), pool.workload, 0)


@pytest.mark.parametrize("start", [least_request, warmpick])
async def test_a_run_has_every_figure(tmp_path, start):
    pool, plan = small(tmp_path)
    figures = await run(start, pool, plan, tmp_path)
    assert figures.keys() == {kind for kind, *_ in KINDS}
    assert 0 < figures["ttft_p50"] <= figures["ttft_p99"]
    assert figures["ttft"] < figures["whole"]
    assert 0 <= figures["cached"] <= 100
    assert figures["cores"] >= 0  # of so little work the system may count nothing


async def test_a_program_that_refuses_requests_is_no_result(tmp_path):
    async def refusing(_, logs):
        return await least_request(["127.0.0.1:1"], logs)

    pool, plan = small(tmp_path)
    with pytest.raises(MeasurementFailed, match="does not serve"):
        await run(refusing, pool, plan, tmp_path, ready_s=0.5)
