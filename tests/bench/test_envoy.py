import contextlib
import itertools

import aiohttp
import pytest
from aiohttp import web

from bench.envoy import EnvoySettings, envoy_config, start_envoy
from epp.gateway.processes import free_port
from tests.envoy_config import complaint

ROUTINGS = ["original_dst", "override_host", "round_robin", "least_request"]
BODY_MODES = ["NONE", "BUFFERED", "STREAMED", "FULL_DUPLEX_STREAMED"]


def settings(**changes):
    ports = {name: free_port() for name in ("listen_port", "admin_port", "epp_port")}
    return EnvoySettings(**{**ports, "endpoints": ("127.0.0.1:9", "[::1]:9"), **changes})


@contextlib.asynccontextmanager
async def named_server(name):
    async def answer(_request):
        return web.Response(text=name)

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


CASES = [
    *({"routing": routing} for routing in ROUTINGS),
    *({"request_body_mode": mode} for mode in BODY_MODES),
    *({"response_body_mode": mode} for mode in BODY_MODES),
    {"epp_tls": True, "failure_mode_allow": False, "stream_idle_timeout_s": 0.5},
    {"failure_mode_allow": True, "request_body_mode": "BUFFERED", "response_body_mode": "NONE"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_envoy_accepts_the_configuration(case, tmp_path):
    path = tmp_path / "envoy.json"
    path.write_text(envoy_config(settings(**case)))
    assert complaint(path) == ""


async def test_round_robin_visits_both_servers_without_a_picker(tmp_path):
    async with named_server("a") as first, named_server("b") as second:
        chosen = settings(routing="round_robin", endpoints=(first, second))
        envoy = await start_envoy(chosen, log_dir=tmp_path)
        try:
            async with aiohttp.ClientSession() as session:
                answers = []
                for _ in range(6):
                    async with session.get(chosen.url) as response:
                        answers.append(await response.text())
        finally:
            await envoy.stop()
    assert sorted(answers) == list("aaabbb")
    assert all(left != right for left, right in itertools.pairwise(answers))
    assert not envoy.alive()


async def test_a_picker_that_is_not_there_fails_closed(tmp_path):
    async with named_server("a") as only:
        chosen = settings(endpoints=(only,))
        envoy = await start_envoy(chosen, log_dir=tmp_path)
        try:
            async with aiohttp.ClientSession() as session, session.get(chosen.url) as response:
                assert response.status == 500
        finally:
            await envoy.stop()
