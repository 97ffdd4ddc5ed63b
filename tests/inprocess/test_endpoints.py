"""The servers that a picker picks from: as they are written, replaced and avoided."""

import asyncio
import json

import pytest

from epp.errors import ConfigError, MalformedRequest, UnknownModel
from epp.inprocess import open_picker
from tests.adapters.vllm_page import vllm_page
from tests.app.polled_pages import Pages
from tests.inprocess.simulators import COMPLETIONS, IDS, ask, simulators
from tests.kubeapi.authority import Authority


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


async def test_a_server_of_a_file_has_the_scheme_that_its_pages_are_read_with(tmp_path):
    path = tmp_path / "endpoints.json"
    path.write_text(json.dumps({"endpoints": [mapping(8443)]}))
    async with open_picker(path) as picker, picker.pick(IDS, path=COMPLETIONS) as pick:
        assert pick.url == "https://127.0.0.1:8443/v1/completions"


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
