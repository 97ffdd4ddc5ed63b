"""Pickers in a program of its own, in front of simulated model servers."""

import asyncio
import contextlib
import json
import pickle
import subprocess
import sys

import aiohttp
import pytest

from epp.app.options import ServeOptions
from epp.config.file import load
from epp.errors import ConfigError, MalformedRequest, ShuttingDown, UnknownModel
from epp.inprocess import InProcessPicker, open_picker
from epp.model.endpoint import Endpoint
from epp.replay.traffic.reading import read
from tests.adapters.tokens.folders import byte_level, write
from tests.adapters.vllm_page import vllm_page
from tests.app.test_data_sources import Pages
from tests.inprocess.simulators import simulators
from tests.kubeapi.authority import Authority

COMPLETIONS = "/v1/completions"
USAGE = {"include_usage": True}
IDS = {"model": "sim-model", "prompt": list(range(1000)), "max_tokens": 4}


async def ask(picker, client, body, path=COMPLETIONS, **headers):
    """Send a request where it is picked for; return the pick and the answer."""
    async with (
        picker.pick(body, headers, path=path) as pick,
        client.post(pick.url, data=pick.body, headers=pick.headers) as response,
    ):
        pick.answered(response.status, response.headers)
        answer = b"".join([pick.feed(each) async for each in response.content.iter_any()])
        pick.finished()
    assert response.status == 200
    return pick, {} if answer.startswith(b"data:") else json.loads(answer)


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


async def test_endpoints_come_and_go():
    async with simulators(3) as (servers, client), open_picker() as picker:
        await picker.set_endpoints(servers[:1])
        await ask(picker, client, IDS)
        await picker.set_endpoints(servers[:2])
        kept, _ = await ask(picker, client, IDS)
        assert kept.decision.predicted_cached_tokens == 992
        async with picker.pick(IDS, path=COMPLETIONS) as running:
            await picker.set_endpoints(servers[1:])
            assert running.url == f"http://{servers[0]}{COMPLETIONS}"
        moved, _ = await ask(picker, client, IDS)
        assert moved.endpoint.target in servers[1:]
        with pytest.raises(ConfigError, match="is not a host name"):
            await picker.set_endpoints(["10.0.0.1:8000", "not a host:1"])
        assert [each.target for each in picker.endpoints] == servers[1:]


async def test_of_several_replacements_at_once_the_last_counts():
    addresses = [f"10.0.0.{number}:8000" for number in range(1, 9)]
    async with open_picker() as picker:
        await asyncio.gather(*(picker.set_endpoints(addresses[:count]) for count in range(1, 9)))
        assert [each.target for each in picker.endpoints] == addresses


async def test_an_endpoint_is_avoided_if_there_is_another():
    async with simulators(2) as (servers, client), open_picker(servers) as picker:
        warm, _ = await ask(picker, client, IDS)
        async with picker.pick(IDS, path=COMPLETIONS, avoid=[warm.endpoint]) as pick:
            assert pick.endpoint != warm.endpoint
        await picker.set_endpoints(warm.endpoint.target)
        async with picker.pick(IDS, path=COMPLETIONS, avoid=[warm.endpoint]) as pick:
            assert pick.endpoint == warm.endpoint


async def test_a_server_that_is_left_out_keeps_its_url_while_requests_run():
    async with (
        open_picker(["https://localhost:8443"]) as picker,
        picker.pick(IDS, path=COMPLETIONS) as pick,
    ):
        await picker.set_endpoints([])
        assert pick.url == "https://localhost:8443/v1/completions"
        await picker.set_endpoints({"name": "a", "address": "127.0.0.1", "port": 8443})
        async with picker.pick(IDS, path=COMPLETIONS) as later:
            assert later.url == "http://127.0.0.1:8443/v1/completions"


def url(port):
    return f"https://localhost:{port}"


def mapping(port):
    return {"name": "a", "address": "127.0.0.1", "port": port, "appProtocol": "https"}


@pytest.mark.parametrize("given", [url, mapping])
async def test_the_pages_of_servers_with_tls_are_read(given):
    async with (
        Pages(metrics=vllm_page()).serving(Authority().context()) as pages,
        open_picker([given(pages.port)], scrape_interval=0.02) as picker,
        picker.pick(IDS, path=COMPLETIONS) as pick,
    ):
        await pages.asked_again(2)
        assert pick.url.startswith("https://")


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


async def test_a_request_waits_for_the_first_endpoint():
    async with simulators(1) as (servers, client), open_picker(hold_empty_timeout=20) as picker:
        asked = asyncio.create_task(ask(picker, client, IDS))
        await asyncio.sleep(0)
        await picker.set_endpoints(servers)
        pick, _ = await asked
        assert pick.decision.waited is not None


async def test_servers_are_written_in_several_ways(tmp_path):
    async with simulators(2) as (servers, client):
        port, more = (int(each.rpartition(":")[2]) for each in servers)
        labels = {"name": "gpu", "address": "127.0.0.1", "port": more, "labels": {"a": "b"}}
        async with open_picker([f"http://localhost:{port}", labels]) as picker:
            named, labelled = sorted(picker.endpoints, key=lambda each: each.port != port)
            assert labelled.labels == {"a": "b"}
            assert named.address == "127.0.0.1"
            urls = set()
            for topic in range(12):
                pick, _ = await ask(picker, client, IDS | {"prompt": [topic] * 500})
                urls.add(pick.url.removesuffix(COMPLETIONS))
        assert urls == {f"http://localhost:{port}", f"http://127.0.0.1:{more}"}
        async with open_picker(servers[0]) as picker:
            assert [each.target for each in picker.endpoints] == servers[:1]
            await picker.set_endpoints(labels | {"address": "localhost"})
            assert [each.target for each in picker.endpoints] == servers[1:]
            await picker.set_endpoints(servers[0])
            assert [each.target for each in picker.endpoints] == servers[:1]
        path = tmp_path / "endpoints.yaml"
        path.write_text(f"endpoints: [{{name: a, address: 127.0.0.1, port: {port}}}]")
        config = tmp_path / "config.yaml"
        config.write_text("plugins: [{type: random-picker}]")
        async with open_picker(path, config=config) as picker:
            assert (await ask(picker, client, IDS))[0].endpoint.name == "a"
            with pytest.raises(ConfigError, match="finds its endpoints by itself"):
                await picker.set_endpoints(servers)


async def test_everything_that_serve_can_be_told_is_an_option():
    async with simulators(1) as (servers, client):
        host, _, port = servers[0].rpartition(":")
        options = ServeOptions(
            settings=load("plugins: [{type: least-ttft-picker}]"),
            source=(Endpoint("default", "a", host, int(port)),),
            shadow=("random", load("plugins: [{type: random-picker}]")),
        )
        async with InProcessPicker(options) as picker:
            pick, _ = await ask(picker, client, IDS | {"stream": True, "stream_options": USAGE})
            assert "warmpick_shadow_" in picker.metrics()
            # The service would leave a stream like this one after its first piece.
            ending = pick.explain().ending
            assert ending is not None
            assert (ending.outcome, ending.completion_tokens) == ("completed", 4)


LISTED = {
    "plugins": [
        {"type": "least-ttft-picker"},
        {"type": "models-responder"},
        {"type": "models-data-extractor", "parameters": {"refuseUnlisted": True}},
    ]
}


async def models_known(picker):
    """Return once all endpoints have listed their models."""
    async with asyncio.timeout(20):
        while True:
            try:
                async with picker.pick({"model": "none", "prompt": [1]}, path=COMPLETIONS):
                    await asyncio.sleep(0.01)
            except UnknownModel:
                return


async def test_an_endpoint_is_not_avoided_for_one_that_does_not_serve_the_model():
    async with (
        simulators(1) as (one, client),
        simulators(2, served_model_name="another") as (others, _),
        open_picker(one + others, config_text=json.dumps(LISTED)) as picker,
    ):
        await models_known(picker)
        only, _ = await ask(picker, client, IDS)
        for body in (IDS, json.dumps(IDS)):
            async with picker.pick(body, path=COMPLETIONS, avoid=[only.endpoint]) as pick:
                assert pick.endpoint == only.endpoint


async def test_an_endpoint_is_avoided_as_long_as_there_is_another_when_it_is_picked():
    async with simulators(2) as (servers, client), open_picker(servers) as picker:
        first, _ = await ask(picker, client, IDS)
        other = next(each for each in servers if each != first.endpoint.target)
        retry = picker.pick(IDS, path=COMPLETIONS, avoid=[first.endpoint])
        await picker.set_endpoints([first.endpoint.target])
        async with retry as pick:
            assert pick.endpoint.target == first.endpoint.target
        late = picker.pick(IDS, path=COMPLETIONS, avoid=[first.endpoint])
        await picker.set_endpoints(servers)
        async with late as pick:
            assert pick.endpoint.target == other


async def test_an_endpoint_is_not_avoided_for_one_that_only_prefills():
    async with simulators(2) as (servers, client):
        places = [each.partition(":") for each in servers]
        roles = [
            {"address": host, "port": int(port), "name": role, "labels": {"llm-d.ai/role": role}}
            for role, (host, _, port) in zip(("prefill", "decode"), places, strict=True)
        ]
        async with open_picker(roles) as picker:
            first, _ = await ask(picker, client, IDS)
            async with picker.pick(IDS, path=COMPLETIONS, avoid=[first.endpoint]) as pick:
                assert pick.endpoint.name == first.endpoint.name == "decode"


async def test_a_body_that_cannot_be_read_is_refused_if_endpoints_are_avoided():
    async with open_picker(["127.0.0.1:1"]) as picker:
        with pytest.raises(MalformedRequest):
            await picker.pick("[" * 100_000, avoid=picker.endpoints).__aenter__()


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


async def test_what_is_open_ends_with_the_picker(tmp_path):
    folder = write(tmp_path / "m", byte_level())
    config = {
        "plugins": [
            {"type": "least-ttft-picker"},
            {"type": "token-producer", "parameters": {"tokenizer": str(folder)}},
        ]
    }
    long = {
        "model": "m",
        "messages": [{"role": "user", "content": "the keeper counted 42 " * 9000}],
    }
    async with simulators(1) as (servers, _):
        picker = await open_picker(servers, config_text=json.dumps(config)).start()
        running = picker.pick({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
        await running.__aenter__()
        tokenized = asyncio.create_task(picker.pick(long).__aenter__())
        await asyncio.sleep(0)
        assert not tokenized.done()
        await picker.close()
        with pytest.raises(ShuttingDown):
            await tokenized
        (view,) = picker.explain(running.id)
        assert view.ending is not None
        assert view.ending.outcome == "aborted"
        for late in (running, picker.pick(long)):
            with pytest.raises(ShuttingDown):
                await late.__aenter__()
        with pytest.raises(ShuttingDown):
            await picker.set_endpoints(servers)
        await picker.close()
        with pytest.raises(RuntimeError, match="opened once"):
            await picker.start()
    assert {task.get_name() for task in asyncio.all_tasks() if "picker" in task.get_name()} == set()


async def test_an_error_in_the_block_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError):
        async with open_picker():
            raise ZeroDivisionError


async def test_a_picker_is_of_the_loop_that_opened_it():
    async with open_picker("127.0.0.1:9") as picker:

        async def elsewhere():
            entered = picker.pick(IDS).__aenter__()
            for called in (entered, picker.set_endpoints([]), picker.close()):
                with pytest.raises(RuntimeError, match="opened on another event loop"):
                    await called

        await asyncio.to_thread(asyncio.run, elsewhere())
        async with picker.pick(IDS, path=COMPLETIONS) as pick:
            assert pick.url == "http://127.0.0.1:9/v1/completions"


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


def test_a_picker_stays_in_its_process():
    with pytest.raises(TypeError, match="open one in the process that picks"):
        pickle.dumps(open_picker("127.0.0.1:9"))


def test_a_picker_is_opened_before_it_picks():
    with pytest.raises(RuntimeError, match="the picker is not open"):
        open_picker().pick(IDS)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"config": "a.yaml", "config_text": "plugins: []"}, "give only one of these"),
        ({"config": "missing.yaml"}, "missing.yaml: cannot be read: No such file"),
        ({"config_text": "plugins: [{type: x}]"}, "plugins"),
        ({"policy": "best"}, "policy: `best` is not one of"),
        ({"scrape_interval": 0}, "scrape_interval: 0 is not an interval in seconds"),
        ({"scrape_interval": float("nan")}, "scrape_interval: nan is not an interval in seconds"),
        ({"hold_timeout": -1.0}, "hold_timeout: -1.0 is not a number of seconds"),
        ({"hold_empty_timeout": -0.5}, "hold_empty_timeout: -0.5 is not a number of seconds"),
        ({"eject_after": -1}, "eject_after: -1 is not a number of 0 or more"),
        ({"metrics_port": 99999}, "metrics_port: 99999 is not a port"),
        ({"metrics_port": -1}, "metrics_port: -1 is not a port"),
        ({"record": __file__}, "record: cannot write to the folder .*: Not a directory"),
        ({"unreachable": [OSError]}, r"unreachable: \[.*OSError.*\] is not a class of exceptions"),
        ({"unreachable": (OSError, "x")}, "unreachable: 'x' is not a class of exceptions"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(given, problem):
    with pytest.raises(ConfigError, match=problem):
        open_picker(**given)


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ("10.0.0.1:8000/v1", "leave out `/v1`"),
        ("nowhere.invalid:80", "cannot be resolved"),
        ({"name": "a", "address": "nowhere.invalid", "port": 80}, "cannot be resolved"),
        (8000, r"endpoints\[0\]: 8000 is neither `host:port`, a URL nor a mapping"),
        ({"name": "a"}, r"endpoints\[0\]"),
    ],
)
async def test_endpoints_that_cannot_be_used_are_refused(server, problem):
    with pytest.raises(ConfigError, match=problem):
        await open_picker([server]).start()


def test_a_setting_without_effect_is_a_warning():
    text = "plugins: [{type: least-ttft-picker}]\nflowControl: {maxRequests: 5}"
    with pytest.warns(UserWarning, match="flowControl has no effect"):
        open_picker(config_text=text)


PROGRAM = """
import asyncio, gc, logging, signal, sys, threading
import structlog
from epp.inprocess import open_picker

def process():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    loggers = logging.root.handlers, logging.root.level
    logs = loggers, structlog.is_configured()
    return handlers, logs, gc.isenabled(), gc.get_freeze_count(), sys.getswitchinterval()

async def main():
    before = process()
    async with open_picker(["127.0.0.1:9"]) as picker:
        assert process() == before
        async with picker.pick({"model": "m", "prompt": [1, 2]}, path="/v1/completions") as pick:
            print(pick.url)
        async with picker.pick({"model": "m", "prompt": "x"}, path="/v1/completions"):
            pass
        try:
            async with picker.pick(b"{"):
                pass
        except Exception as error:
            print(type(error).__name__)
    assert process() == before
    assert len(asyncio.all_tasks()) == 1

asyncio.run(main())
print([each.name for each in threading.enumerate()])
"""


def test_it_leaves_the_process_as_it_is():
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == [
        "http://127.0.0.1:9/v1/completions",
        "MalformedRequest",
        "['MainThread']",
    ]
    (line,) = said.stderr.splitlines()
    assert line.startswith("endpoint.unreachable endpoint='default/127.0.0.1:9' error=")


def test_it_logs_as_the_program_has_configured_structlog():
    own = "structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stdout))"
    program = PROGRAM.replace("def process", f"{own}\n\ndef process", 1)
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    (line,) = (each for each in said.stdout.splitlines() if "endpoint.unreachable" in each)
    assert "warning" in line
    assert said.stderr == ""


def test_it_logs_to_the_standard_library_with_levels_and_tracebacks():
    program = """
import logging, sys
from epp.system.logs import Log
logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO)
log = Log("epp.app.jobs")
log.debug("endpoint.polled", endpoint="a")
log.info("endpoint.recovered", endpoint="a", share="100%")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("scrape.fault", url="http://a")
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    lines = said.stderr.splitlines()
    assert lines[:2] == [
        "INFO epp.app.jobs: endpoint.recovered endpoint='a' share='100%'",
        "ERROR epp.app.jobs: scrape.fault url='http://a'",
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert said.stdout == ""
