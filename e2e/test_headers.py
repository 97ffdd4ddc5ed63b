"""What of a client's headers reaches a model server, and what the model server is told."""

import uuid

import msgspec
import pytest
import pytest_asyncio

from e2e.corridor import CHAT, MODEL, Plan, chat, corridor, decision

DESTINATION = "x-gateway-destination-endpoint"
PLANS = {"override host": Plan(), "original destination": Plan(routing="original_dst")}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PLANS)
async def gateway(request, echo, tmp_path_factory):
    plan = msgspec.structs.replace(PLANS[request.param], others=(echo.target,))
    async with corridor(plan, tmp_path_factory.mktemp("headers")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def silent(echo, tmp_path_factory):
    """A picker that asks for load reports, and tells clients nothing."""
    plan = Plan(others=(echo.target,), picker_flags=("--request-orca", "--debug-headers=false"))
    async with corridor(plan, tmp_path_factory.mktemp("silent")) as made:
        yield made


async def test_a_client_cannot_say_where_its_request_goes(gateway, echo, second_echo):
    headers = {DESTINATION: second_echo.target, "x-prefiller-host-port": second_echo.target}
    answer = await gateway.post(CHAT, chat("let me through"), **headers)
    assert (answer.status, answer.headers["x-echo"]) == (200, echo.target)
    assert decision(answer)["endpoint"] == echo.target
    assert second_echo.seen == []
    assert "x-prefiller-host-port" not in echo.seen[-1].headers
    assert echo.seen[-1].headers[DESTINATION] == echo.target


@pytest.mark.parametrize(
    "name",
    [
        "x-gateway-inference-objective",
        "x-gateway-inference-fairness-id",
        "x-llm-d-inference-fairness-id",
        "x-data-parallel-host-port",
        "x-encoder-hosts-ports",
        "x-slo-ttft-ms",
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-served",
    ],
)
async def test_control_headers_stay_with_the_picker(gateway, echo, name):
    assert (await gateway.post(CHAT, chat("hello"), **{name: "7"})).status == 200
    assert name not in echo.seen[-1].headers


async def test_all_other_headers_arrive(gateway, echo):
    sent = {"authorization": "Bearer secret", "x-mine": "a, b;c=\u00e9", "accept": "*/*"}
    assert (await gateway.post(CHAT, chat("hello"), **sent)).status == 200
    assert {name: echo.seen[-1].headers[name] for name in sent} == sent


async def test_a_request_has_an_id_and_keeps_the_clients_own(gateway, echo):
    for _ in range(2):
        await gateway.post(CHAT, chat("hello"))
    first, second = (seen.headers["x-request-id"] for seen in echo.seen[-2:])
    assert uuid.UUID(first) != uuid.UUID(second)
    await gateway.post(CHAT, chat("hello"), **{"x-request-id": "mine"})
    assert echo.seen[-1].headers["x-request-id"] == "mine"


async def test_a_fairness_id_is_counted(gateway):
    before = await gateway.metric("llm_d_epp_request_total", fairness_id="team-a")
    await gateway.post(CHAT, chat("hello"), **{"x-llm-d-inference-fairness-id": "team-a"})
    await gateway.metric_becomes(before + 1, "llm_d_epp_request_total", fairness_id="team-a")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_any_method_on_any_path_passes(gateway, echo, method):
    async with gateway.client.request(method, gateway.url + "/some/path?q=1&q=2") as response:
        assert response.status == 200
        assert await response.read() == b""
    assert (echo.seen[-1].method, echo.seen[-1].path) == (method, "/some/path?q=1&q=2")


async def test_a_body_of_any_kind_passes(gateway, echo):
    body = bytes(range(256)) * 500
    answer = await gateway.post("/v1/audio/transcriptions", body)
    assert (answer.status, answer.body, echo.seen[-1].body) == (200, body, body)


async def test_load_reports_are_asked_for_only_when_told_to(gateway, echo, silent):
    await gateway.post(CHAT, chat("hello"))
    assert "endpoint-load-metrics-format" not in echo.seen[-1].headers
    await silent.post(CHAT, chat("hello"))
    assert echo.seen[-1].headers["endpoint-load-metrics-format"] == "JSON"


async def test_without_the_flag_clients_are_not_told_what_was_decided(gateway, silent):
    answer = await gateway.post(CHAT, chat("hello"))
    assert set(decision(answer)) == {
        "endpoint",
        "prompt_tokens",
        "predicted_cached_tokens",
        "predicted_ttft_ms",
        "cost",
    }
    plain = await silent.post(CHAT, chat("hello"))
    assert not [name for name in plain.headers if "warmpick" in name.lower()]


NAMES = ("x-gateway-model-name-rewrite", "x-llm-d-model-name-rewrite")
REWRITTEN = (
    b'{ "messages":[{"role":"user","content":"\\"model\\": \\"sim-model\\""}], "model" : "%s" }'
)


@pytest.mark.parametrize("header", NAMES)
async def test_a_rewrite_reaches_the_server_and_is_undone_for_the_client(gateway, echo, header):
    target = 'adapter "7"'
    sent, expected = REWRITTEN % b"sim-model", REWRITTEN % b'adapter \\"7\\"'
    flow = {"model_name": MODEL, "target_model_name": target}
    before = await gateway.metric("llm_d_epp_request_total", **flow)
    answer = await gateway.post(CHAT, sent, **{header: target})
    assert echo.seen[-1].body == expected
    assert header not in echo.seen[-1].headers
    # The echo answers with what it got: an answer that names the target.
    assert answer.status == 200
    assert answer.body == sent
    await gateway.metric_becomes(before + 1, "llm_d_epp_request_total", **flow)
