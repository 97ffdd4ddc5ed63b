"""Faults on demand."""

import asyncio

import aiohttp
import pytest

from .simulated import chat, post, serving

BODY = chat("hi", max_tokens=9, stream=True)


def send(client, fault):
    return client.post("/v1/chat/completions", json=BODY, headers={"x-sim-fault": fault})


async def read_into(response, got):
    async for data in response.content.iter_any():
        got.append(data)


async def test_refuse():
    async with serving(faults=True) as (server, client):
        with pytest.raises(aiohttp.ServerDisconnectedError):
            async with send(client, "refuse"):
                pass
        assert not server.engine.scheduler.busy


async def test_status():
    async with serving(faults=True) as (_, client), send(client, "status=503") as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == 503


async def test_hang():
    async with serving(faults=True) as (_, client):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), send(client, "hang"):
                pass
        status, _, _ = await post(client, "/v1/chat/completions", BODY | {"stream": False})
        assert status == 200


async def test_slow_headers():
    async with serving(faults=True) as (_, client):
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with send(client, "slow-headers=0.2") as response:
            assert response.status == 200
            assert loop.time() - started >= 0.2


@pytest.mark.parametrize("chunks", [1, 3])
async def test_die_after(chunks):
    async with serving(faults=True) as (server, client):
        got: list[bytes] = []
        async with send(client, f"die-after={chunks}") as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await read_into(response, got)
        assert b"".join(got).count(b"data: ") == 1 + chunks  # the role comes before
        assert not server.engine.scheduler.busy
        status, _, _ = await post(client, "/v1/chat/completions", BODY | {"stream": False})
        assert status == 200


@pytest.mark.parametrize("fault", ["explode", "status", "die-after=x", "hang=1"])
async def test_an_unknown_fault_is_refused(fault):
    async with serving(faults=True) as (_, client), send(client, fault) as response:
        assert response.status == 400
        assert "unknown x-sim-fault" in (await response.json())["error"]["message"]


async def test_faults_are_off_unless_allowed():
    async with serving() as (_, client), send(client, "status=500") as response:
        assert response.status == 200
