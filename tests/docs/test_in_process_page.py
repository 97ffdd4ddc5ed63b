"""The programs of docs/in-process.md run, in front of simulated model servers."""

import asyncio
import json
import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from model_server.simulator.settings import Speed
from model_server.simulator.strain import Strain

from docs.site.pages import ROOT
from epp.errors import WarmpickError
from epp.inprocess import open_picker
from tests.docs.pages import PAGES, blocks
from tests.inprocess.simulators import simulators

PAGE = "docs/in-process.md"
ROLLOUTS = ROOT / "docs" / "examples" / "rollouts.py"
FENCES = [each.text for each in blocks("python") if each.page == PAGE]
CHAT = {"model": "sim-model", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def page():
    """What the page's programs define; but for those that act, and for what is not installed."""
    names: dict[str, Any] = {"__name__": "page"}
    for fence in FENCES:
        if "async def " in fence and (find_spec("openai") or "import openai" not in fence):
            exec(compile(fence, PAGE, "exec"), names)  # noqa: S102 (the page's own)
    return names


@pytest.fixture
def system_certificates(monkeypatch):
    """Have httpx's clients start: they read certificates even if they will not need any."""
    monkeypatch.delenv("SSL_CERT_FILE")


async def test_the_first_program_runs(page):
    async with simulators(2) as (servers, _):
        answer = json.loads(await page["main"](servers))
        assert answer["choices"][0]["message"]["content"]


async def test_ids_hit_the_second_time(page):
    async with simulators(2) as (servers, client), open_picker(servers) as picker:
        prompt = list(range(200))
        assert [await page["ids"](picker, client, prompt) for _ in range(2)] == [0, 192]


async def test_ids_of_sglangs_own_api_are_read(page):
    async with simulators(1) as (servers, client):  # which answer with 404
        assert await page["sglang"](servers, client, list(range(300))) == 300


async def test_a_stream_is_passed_on_and_learned_from(page):
    async with simulators(2) as (servers, client), open_picker(servers) as picker:
        passed = await page["stream"](picker, client, CHAT)
        assert passed.endswith(b"data: [DONE]\n\n")
        assert "\nllm_d_epp_request_output_tokens_sum" in picker.metrics()
        (tokens,) = re.findall(
            r"^llm_d_epp_request_output_tokens_sum\S* (\S+)", picker.metrics(), re.MULTILINE
        )
        assert float(tokens) == 8


async def test_a_thread_picks_on_a_loop_beside_it(page):
    async with simulators(2) as (servers, _):
        assert await asyncio.to_thread(page["from_a_thread"], servers, CHAT) in servers


async def test_numbers_are_told_in_place_of_bytes(page):
    async with simulators(1) as (servers, client), open_picker(servers) as picker:

        async def completions(url, body):
            asked = json.loads(body) | {"stream_options": {"include_usage": True}}
            async with client.post(url, json=asked) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        yield json.loads(line[6:])

        assert await page["numbers"](picker, completions) > 8
        (tokens,) = re.findall(
            r"^llm_d_epp_request_output_tokens_sum\S* (\S+)", picker.metrics(), re.MULTILINE
        )
        assert float(tokens) == 16  # vLLM's default of a completion


@pytest.mark.usefixtures("system_certificates")
async def test_many_requests_are_sent_at_once_with_httpx(page):
    async with simulators(2, speed=Speed(factor=4)) as (servers, _):
        bodies = [CHAT | {"max_tokens": 64, "seed": seed} for seed in range(150)]
        answers = await page["all_at_once"](servers, bodies)
    assert [each["usage"]["completion_tokens"] for each in answers] == [64] * 150
    assert issubclass(httpx.ReadError, page["BROKEN"])
    assert not issubclass(httpx.PoolTimeout, page["BROKEN"])


@pytest.mark.usefixtures("system_certificates")
async def test_openais_client_is_sent_where_it_is_picked_for(page):
    openai = pytest.importorskip("openai")
    async with (
        simulators(2) as (servers, _),
        open_picker(servers) as picker,
        openai.AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:1/v1") as client,
    ):
        answer = await page["with_openai"](picker, client, CHAT)
        assert answer.usage.completion_tokens == 8
        assert "\nllm_d_epp_request_output_tokens_sum" in picker.metrics()


@pytest.mark.usefixtures("system_certificates")
async def test_a_server_whose_errors_openais_client_raises_is_left_out(page):
    openai = pytest.importorskip("openai")
    async with (
        simulators(1, strain=Strain(shed_above=0)) as (down, _),
        simulators(1) as (up, _),
        open_picker(down + up) as picker,
        openai.AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:1/v1") as client,
    ):
        failures = 0
        for topic in range(40):
            body = CHAT | {"messages": [{"role": "user", "content": f"{topic} " * 40}]}
            try:
                await page["with_openai"](picker, client, body)
            except openai.InternalServerError:
                failures += 1
        assert failures == 5  # in a row: the default of eject_after


async def test_a_gateway_streams_and_refuses(page):
    async with simulators(2) as (servers, client), open_picker(servers) as picker:
        app = web.Application()
        app.router.add_post("/v1/{path:.*}", partial(page["proxy"], picker, client))
        async with TestClient(TestServer(app)) as user:
            path = "/v1/chat/completions"
            async with user.post(path, json=CHAT | {"stream": True}) as response:
                assert response.content_type == "text/event-stream"
                assert (await response.read()).endswith(b"data: [DONE]\n\n")

            async def pieces():
                yield json.dumps(CHAT).encode()

            async with user.post(
                path, data=pieces()
            ) as response:  # chunked, as it is not passed on
                assert (await response.json())["usage"]["completion_tokens"] == 8
            async with user.post(path, data=b"{") as response:
                shown = await response.json()
                assert (response.status, shown["error"]["type"]) == (400, "malformed-request")


async def test_a_retry_goes_to_another_server(page):
    async with (
        simulators(1, faults=True) as (down, client),
        simulators(1) as (up, _),
        open_picker(down) as picker,
    ):
        long = CHAT | {"messages": [{"role": "user", "content": "again " * 400}]}
        await page["with_retries"](picker, client, long)  # it is in that one's cache
        await picker.set_endpoints(down + up)
        for fault in ("status=500", "refuse"):
            client.headers["x-sim-fault"] = fault  # the other one has no faults
            answer = json.loads(await page["with_retries"](picker, client, long))
            assert answer["usage"]["completion_tokens"] == 8
        await picker.set_endpoints(down)
        with pytest.raises(ConnectionError, match="three servers failed"):
            await page["with_retries"](picker, client, long)


async def test_cleared_caches_are_told(page):
    async with simulators(2) as (servers, client), open_picker(servers) as picker:
        prompt = list(range(200))
        await page["ids"](picker, client, prompt)
        await page["clear"](picker, client)
        assert [await page["ids"](picker, client, prompt) for _ in range(2)] == [0, 192]


async def test_a_refusal_has_a_status_and_a_reason(page):
    async with simulators(1) as (servers, _), open_picker(servers) as picker:
        assert await page["refused"](picker, b"{") == (400, "malformed-request")
        assert (await page["refused"](picker, CHAT))[0] == 200
        await picker.set_endpoints([])
        assert await page["refused"](picker, CHAT) == (503, "no-endpoints")


async def test_endpoints_are_replaced_and_decisions_explained(page):
    async with simulators(3) as (servers, _), open_picker(servers) as picker:
        assert await page["replace"](picker, servers[:2]) == servers[:2]
        assert (await page["why"](picker, CHAT)).keys() == set(servers[:2])


async def test_options_of_the_service_are_taken(page):
    async with simulators(1) as (servers, _):
        shown = await page["with_a_shadow"](servers, "plugins: [{type: random-picker}]", CHAT)
    assert 'warmpick_shadow_decisions_total{policy="linear"' in shown


async def test_a_notebook_opens_and_closes_it_in_two_cells(page):
    async with simulators(1) as (servers, _):
        assert await page["cells"](servers) == servers


def test_every_error_of_the_page_has_its_status():
    rows = re.findall(r"^\| (\d{3}) \| (.*?) \|", PAGES[PAGE], re.MULTILINE)
    kinds = {each.__name__: each for each in family(WarmpickError)}
    told = [(int(status), name) for status, row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(told) > 5
    assert [(kinds[name].status, name) for _, name in told] == told


def family(kind):
    return [kind, *(each for child in kind.__subclasses__() for each in family(child))]


def test_the_log_has_what_the_page_leaves_of_it():
    (fence,) = [each for each in FENCES if "logging" in each]
    program = fence + (
        "\nfrom epp.system.logs import Log"
        "\nlog = Log('epp.app.jobs')"
        "\nlog.warning('endpoint.unreachable')"
        "\nlog.error('job.failed')"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout == ""
    assert said.stderr == "job.failed\n"


def test_the_rollouts_of_the_page_are_those_of_the_file():
    (fence,) = [
        each
        for each in FENCES
        if "async def " not in each and "rollout" not in each and "turn" in each
    ]
    assert fence in ROLLOUTS.read_text()


def test_rollouts_run_and_say_what_the_page_shows():
    said = subprocess.run(
        [sys.executable, ROLLOUTS, "8", "least-ttft"],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    form = r"[a-z-]+: \d+ rollouts in \d+\.\d s, \d+% cached\n"
    assert re.fullmatch(form, said.stdout)
    shown = re.findall(rf"^(?:{form})", PAGES[PAGE], re.MULTILINE)
    assert [line.partition(":")[0] for line in shown] == ["round-robin", "least-ttft"] * 2


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(pick\.\w+|picker\.\w+)", PAGES[PAGE]))))
async def test_what_the_page_names_is_there(named):
    picker = open_picker()
    async with picker:
        owner, _, name = named.partition(".")
        subject = picker if owner == "picker" else picker.pick(CHAT)
        assert hasattr(type(subject), name)
