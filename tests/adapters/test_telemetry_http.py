import asyncio
import contextlib

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from epp.adapters.telemetry.http import OperatorServer
from epp.adapters.telemetry.metrics import Sources, Telemetry


@contextlib.asynccontextmanager
async def serving(ready=lambda: True):
    telemetry = Telemetry(Sources("pool", list, list, int))
    server = OperatorServer(telemetry, ready, "127.0.0.1", 0)
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            yield server, session
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("accept", "content_type", "read"),
    [
        ("", "text/plain", text_string_to_metric_families),
        ("text/plain;version=0.0.4", "text/plain", text_string_to_metric_families),
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics", read_openmetrics),
    ],
)
async def test_metrics_come_in_the_format_asked_for(accept, content_type, read):
    async with (
        serving() as (_, session),
        session.get("/metrics", headers={"Accept": accept}) as response,
    ):
        assert response.status == 200
        assert response.headers["Content-Type"].startswith(content_type)
        names = {family.name for family in read(await response.text())}
    assert "llm_d_epp_ready_endpoints" in names


async def test_readiness_is_asked_each_time_and_liveness_is_not_readiness():
    answers = iter([False, True, False])
    async with serving(lambda: next(answers)) as (_, session):
        statuses = []
        for path in ("/readyz", "/readyz", "/readyz", "/healthz", "/nothing"):
            async with session.get(path) as response:
                statuses.append(response.status)
    assert statuses == [503, 200, 503, 200, 404]


async def test_a_port_in_use_is_an_error_and_stop_frees_it():
    async with serving() as (server, _):
        other = OperatorServer(Telemetry(Sources("p", list, list, int)), bool, "127.0.0.1", 0)
        other.port = server.port
        with pytest.raises(OSError, match="address already in use"):
            await other.start()
        await other.stop()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", server.port)
