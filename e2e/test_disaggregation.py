"""Prefill and decode at pods of their own: what a decode pod's sidecar is told, through Envoy."""

import json
import math
import time

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from e2e.corridor import CHAT, Corridor, Plan, chat, decision, until
from e2e.echo import echoing
from e2e.serving import serving

PREFILLER = ("x-prefiller-host-port", "x-llm-d-prefiller-host-port")
COUNTED = "llm_d_epp_disagg_decision_total"
ENCODERS = ("x-encoder-hosts-ports", "x-llm-d-encoder-hosts-ports")
GUIDE = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: approx-prefix-cache-producer
  parameters:
    maxPrefixTokensToMatch: 131072
- type: inflight-load-producer
- type: prefill-filter
- type: decode-filter
- type: encode-filter
- type: prefix-cache-affinity-filter
  parameters:
    peakPrefillThroughput: 33821
- type: token-load-scorer
- type: active-request-scorer
- type: always-disagg-pd-decider
- type: always-disagg-multimodal-decider
- type: disagg-profile-handler
  parameters:
    deciders:
      prefill: always-disagg-pd-decider
      encode: always-disagg-multimodal-decider
schedulingProfiles:
- name: encode
  plugins:
  - pluginRef: encode-filter
- name: prefill
  plugins:
  - pluginRef: prefill-filter
  - pluginRef: prefix-cache-affinity-filter
  - pluginRef: token-load-scorer
- name: decode
  plugins:
  - pluginRef: decode-filter
  - pluginRef: active-request-scorer
"""
"""llm-d's guide to disaggregated prefill, with its encode stage."""


class Roles(Corridor):
    """A corridor whose endpoints have the roles that their names begin with."""

    def write_endpoints(self, *names: str) -> None:
        """Put the endpoints in the file, with labels."""
        entries = [
            {
                "name": name,
                "address": "127.0.0.1",
                "port": int(self.targets[name][10:]),
                "labels": {"llm-d.ai/role": name.partition("-")[0]},
            }
            for name in names
        ]
        self.endpoints_path.write_text(json.dumps({"endpoints": entries}))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prefill():
    async with echoing() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def encode():
    async with echoing() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(echo, prefill, encode, tmp_path_factory):
    directory = tmp_path_factory.mktemp("disaggregation")
    (directory / "config.yaml").write_text(GUIDE)
    plan = Plan(picker_flags=(f"--config-file={directory / 'config.yaml'}",))
    async with aiohttp.ClientSession() as client:
        made = Roles(plan, directory, client)
        made.targets = {
            "decode-0": echo.target,
            "prefill-0": prefill.target,
            "encode-0": encode.target,
        }
        try:
            await made.start()
            yield made
        finally:
            await made.stop()


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}


def told(echo, names):
    """What the decode pod was told under these names, the same under each of them."""
    seen = echo.seen[-1].headers
    (value,) = {seen.get(name) for name in names}
    return value


async def test_the_decode_pod_is_told_of_the_prefill_pod(gateway, echo, prefill):
    answer = await gateway.post(CHAT, chat("where is my prompt computed?"))
    assert (answer.status, answer.headers["x-echo"]) == (200, echo.target)
    assert told(echo, PREFILLER) == prefill.target
    assert told(echo, ENCODERS) is None
    assert prefill.seen == []
    assert decision(answer)["endpoint"] == echo.target
    assert decision(answer)["stages"] == {"prefill": prefill.target}


async def test_an_image_is_encoded_at_the_encode_pod(gateway, echo, prefill, encode):
    body = chat("what is this?")
    body["messages"][0]["content"] = [{"type": "text", "text": "what is this?"}, IMAGE]
    assert (await gateway.post(CHAT, body)).status == 200
    assert told(echo, ENCODERS) == encode.target
    assert told(echo, PREFILLER) == prefill.target


@pytest.mark.parametrize("name", [*PREFILLER, *ENCODERS, "x-data-parallel-host-port"])
async def test_a_client_cannot_say_where(gateway, echo, prefill, name):
    answer = await gateway.post(CHAT, chat("let me say"), **{name: "10.6.6.6:80"})
    assert answer.status == 200
    assert told(echo, PREFILLER) == prefill.target
    assert "10.6.6.6:80" not in echo.seen[-1].headers.values()


async def test_stages_are_counted(gateway):
    before = await gateway.metric(COUNTED, decision_type="prefill-decode")
    assert (await gateway.post(CHAT, chat("one more"))).status == 200
    await gateway.metric_becomes(before + 1, COUNTED, decision_type="prefill-decode")


async def test_without_a_decode_pod_the_answer_says_so(gateway):
    gateway.write_endpoints("prefill-0", "encode-0")

    async def gone():
        answer = await gateway.post(CHAT, chat("anyone?"))
        return answer.status == 503 and "no decode endpoint" in answer.message

    try:
        await until(gone)
    finally:
        gateway.write_endpoints(*gateway.targets)


# If five fail in a row, by chance, errors of other kinds may be the decode pod's own.
@pytest.mark.parametrize(("status", "most"), [(429, 5), (503, 5), (500, 20)])
async def test_a_prefill_pod_that_refuses_is_found_though_the_decode_pod_answers(
    status, most, tmp_path
):
    refusing = ""

    async def sidecar(request):
        """Answer as llm-d's sidecar does: a prefill that fails is the answer."""
        if request.headers.get(PREFILLER[0]) == refusing:
            return web.json_response({"error": {"message": "no"}}, status=status)
        message = {"role": "assistant", "content": "yes"}
        return web.json_response({"choices": [{"index": 0, "message": message}]})

    (tmp_path / "config.yaml").write_text(GUIDE)
    plan = Plan(picker_flags=(f"--config-file={tmp_path / 'config.yaml'}",))
    async with (
        serving(sidecar) as decode,
        echoing() as first,
        echoing() as second,
        aiohttp.ClientSession() as client,
    ):
        made = Roles(plan, tmp_path, client)
        made.targets = {"decode-0": decode, "prefill-0": first.target, "prefill-1": second.target}
        refusing = first.target
        try:
            await made.start()
            began = time.monotonic()
            posts = [await made.post(CHAT, chat(f"prompt {number}")) for number in range(80)]
            seconds = time.monotonic() - began
        finally:
            await made.stop()
    assert {each.status for each in posts} == {200, status}
    assert sum(each.status == status for each in posts) <= most + math.ceil(seconds)
