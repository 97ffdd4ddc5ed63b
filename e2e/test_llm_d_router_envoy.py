"""The Envoy of llm-d-router's standalone chart, unchanged, before the picker with its flags."""

import asyncio
import signal

import pytest
import pytest_asyncio

from e2e.corridor import CHAT, SERVER, Plan, chat, until
from e2e.kube_corridor import kube_corridor
from e2e.llm_d_router_corridor import LlmDRouterCorridor

TEXT = "The harbour master wrote down every ship that came in before the fog. " * 60
PODS = ("a", "b", "c")
CHECKED = ("--health-checking=true",)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[(), CHECKED])
async def gateway(request, tmp_path_factory):
    """Three pods, of which the picker knows by their labels alone."""
    plan = Plan(tls=True, server_flags=("--speed", "20"), picker_flags=request.param)
    directory = tmp_path_factory.mktemp("standalone")
    async with kube_corridor(plan, directory, LlmDRouterCorridor) as made:
        for name in PODS:
            await made.start_pod(name)
        await made.start()
        await made.endpoints_become(len(PODS))
        yield made


async def picker_is_healthy(gateway):
    """What Envoy's check of the picker says: `grpc_health_check` on the ext_proc port."""
    url = f"http://127.0.0.1:{gateway.admin_port}/clusters?format=json"
    async with gateway.client.get(url) as response:
        clusters = (await response.json())["cluster_statuses"]
    (picker,) = [each for each in clusters if each["name"] == "ext_proc"]
    (host,) = picker["host_statuses"]
    return not host["health_status"].get("failed_active_health_check", False)


async def test_envoy_knows_that_the_picker_serves_where_it_offers_health(gateway):
    wanted = gateway.plan.picker_flags == CHECKED

    async def told():
        return await picker_is_healthy(gateway) == wanted

    await until(told)


async def test_a_conversation_stays_where_it_is_warm(gateway):
    first = await gateway.post(CHAT, chat(TEXT, max_tokens=24))
    assert first.status == 200
    reply = first.json["choices"][0]["message"]["content"]
    second = await gateway.post(CHAT, chat(TEXT, reply, "And then?"))
    assert (second.status, second.headers[SERVER]) == (200, first.headers[SERVER])
    usage = second.json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.8 * usage["prompt_tokens"]


async def test_answers_stream(gateway):
    async with gateway.stream(CHAT, chat("count", stream=True, max_tokens=8)) as response:
        assert response.status == 200
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_requests_go_to_every_pod(gateway):
    bodies = [chat(f"{number} {TEXT}") for number in range(24)]
    answers = await asyncio.gather(*(gateway.post(CHAT, body) for body in bodies))
    assert {answer.status for answer in answers} == {200}
    assert {answer.headers[SERVER] for answer in answers} == set(PODS)


@pytest.mark.parametrize("size", [40_000, 400_000, 4_000_000])
async def test_long_bodies_pass_its_small_windows(gateway, size):
    answer = await gateway.post(CHAT, chat("x" * size))
    assert answer.status in {200, 400}  # 400: the model's context is shorter
    assert SERVER in answer.headers


async def test_other_requests(gateway):
    models = await gateway.get("/v1/models")
    assert (models.status, SERVER in models.headers) == (200, True)
    wrong = await gateway.post(CHAT, b"{")
    assert (wrong.status, SERVER in wrong.headers) == (400, False)


async def test_a_client_cannot_choose_where_it_goes(gateway):
    answer = await gateway.post(
        CHAT, chat("hello"), **{"x-gateway-destination-endpoint": "127.0.0.1:1"}
    )
    assert answer.status == 200


async def test_without_the_picker_requests_fail_and_with_it_they_pass_again(gateway):
    gateway.signal(gateway.picker, signal.SIGKILL)

    async def answered(status):
        return (await gateway.post(CHAT, chat("anyone?"))).status == status

    await until(lambda: answered(500))
    await gateway.start_picker()
    await gateway.endpoints_become(len(PODS))
    await until(lambda: answered(200))
