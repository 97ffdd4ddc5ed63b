"""Pickers in a program of its own, in front of simulated model servers."""

import contextlib
import json

import aiohttp
import pytest

from epp.errors import ConfigError
from epp.inprocess import open_picker
from epp.replay.traffic.reading import read
from tests.inprocess.simulators import COMPLETIONS, IDS, ask, simulators


async def test_ids_are_matched_token_by_token():
    async with simulators(3) as (servers, client), open_picker(servers) as picker:
        assert [each.target for each in picker.endpoints] == servers
        first, cold = await ask(picker, client, IDS)
        again, warm = await ask(picker, client, IDS)
        assert again.url == first.url
        assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        # vLLM computes at least the last token: of 1,000 it finds 62 blocks of 16.
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 992
        assert (first.decision.predicted_cached_tokens, again.decision.predicted_cached_tokens) == (
            0,
            992,
        )
        (view,) = picker.explain(again.id)
        assert view.ending is not None
        assert view.ending.cached_tokens == 992
        assert view.profiles[0].winner == again.endpoint.id
        assert "warmpick_" in picker.metrics()


async def test_a_request_is_found_by_its_clients_id_too():
    async with simulators(1) as (servers, client), open_picker(servers) as picker:
        pick, _ = await ask(picker, client, IDS, **{"X-Request-Id": "mine"})
        assert [each.request for each in picker.explain("mine")] == [pick.id]


async def test_two_pickers_share_nothing():
    async with (
        simulators(2) as (servers, client),
        open_picker(servers[:1]) as one,
        open_picker(servers[1:], policy="linear") as other,
    ):
        for picker, server in ((one, servers[0]), (other, servers[1])):
            pick, _ = await ask(picker, client, IDS)
            assert pick.endpoint.target == server
            assert pick.decision.predicted_cached_tokens == 0


async def test_caches_that_were_cleared_are_empty():
    async with simulators(2) as (servers, client), open_picker(servers) as picker:
        first, _ = await ask(picker, client, IDS)
        picker.caches_cleared(first.endpoint)
        async with client.post(f"http://{first.endpoint.target}/reset_prefix_cache") as response:
            assert response.status == 200
        second, cold = await ask(picker, client, IDS)
        assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        third, _ = await ask(picker, client, IDS)
        picker.caches_cleared()
        fourth, _ = await ask(picker, client, IDS)
        found = [each.decision.predicted_cached_tokens for each in (second, third, fourth)]
        assert found == [0, 992, 0]


async def test_what_is_recorded_can_be_replayed(tmp_path):
    async with (
        simulators(1) as (servers, client),
        open_picker(servers, record=tmp_path / "made", pool_name="mine") as picker,
    ):
        for _ in range(3):
            await ask(picker, client, IDS)
    trace = read(str(tmp_path / "made"), seed=0, strict=True)
    assert [sum(length for *_, length in each.prompt) for each in trace.calls] == [1000] * 3


async def test_the_metrics_port_explains_decisions():
    async with simulators(1) as (servers, client), open_picker(servers, metrics_port=0) as picker:
        pick, _ = await ask(picker, client, IDS)
        page = f"http://127.0.0.1:{picker.metrics_port}"
        async with client.get(f"{page}/debug/decisions?request={pick.id}") as response:
            (shown,) = (await response.json())["decisions"]
        assert shown["request"] == pick.id
        async with client.get(f"{page}/readyz") as response:
            assert response.status == 200
        other = open_picker(servers, metrics_port=picker.metrics_port)
        with pytest.raises(ConfigError, match="metrics_port: cannot listen"):
            await other.start()
        assert other.metrics_port is None


async def test_the_exception_of_a_client_counts_against_the_server():
    gone = aiohttp.ServerDisconnectedError
    async with (
        simulators(2, faults=True) as (servers, client),
        open_picker(servers, unreachable=(gone,)) as picker,
    ):
        failures = 0
        for topic in range(40):
            body = IDS | {"prompt": [topic] * 100}
            with contextlib.suppress(gone):
                async with picker.pick(body, path=COMPLETIONS) as pick:
                    broken = pick.endpoint.target == servers[0]
                    failures += broken
                    fault = {"x-sim-fault": "refuse"} if broken else {}
                    headers = pick.headers | fault
                    async with client.post(pick.url, data=pick.body, headers=headers) as response:
                        pick.finished(await response.read(), status=response.status)
        assert failures == 5  # in a row: the default of eject_after
        assert "\nwarmpick_ejected_endpoints 1" in picker.metrics()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, bytes.decode, json.loads])
async def test_a_body_is_bytes_or_text_or_a_mapping(kind):
    async with open_picker("127.0.0.1:9") as picker:
        body = kind(json.dumps(IDS).encode())
        async with picker.pick(body, path=COMPLETIONS) as pick:
            assert json.loads(pick.body) == IDS
            assert pick.decision.prompt_tokens == 1000


async def test_a_path_begins_with_a_slash():
    async with open_picker("127.0.0.1:9") as picker:
        with pytest.raises(ValueError, match="'v1/completions' does not begin with a slash"):
            picker.pick(IDS, path="v1/completions")
