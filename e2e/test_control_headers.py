"""Which control headers reach a model server: none of a client's, with and without a picker."""

import asyncio
import contextlib
import json

import aiohttp
import pytest

from e2e.corridor import CHAT, START_SECONDS, chat, quiet_port, until
from e2e.from_nothing import up
from epp.gateway.envoy import envoy_binary
from epp.gateway.processes import spawn
from epp.protocol.extproc.names import CONTROL_HEADERS, RANK
from tests.test_envoy_clusters import MARK, RENDERED, configurations

EVIL = "6.6.6.6:1"
SENT = dict.fromkeys(CONTROL_HEADERS, EVIL)
PREFILLER = ("x-prefiller-host-port", "x-llm-d-prefiller-host-port")
CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: prefill-filter
- type: decode-filter
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters: {deciders: {prefill: always-disagg-pd-decider}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}]}
- {name: decode, plugins: [{pluginRef: decode-filter}]}
"""


async def ask(gateway, servers, method="POST", path=CHAT):
    """Send all control headers; return those that arrived, None where nobody answers in time."""
    for server in servers:
        server.seen.clear()
    body = json.dumps(chat("hello")) if method == "POST" else None
    headers = SENT | {"content-type": "application/json"}
    try:
        async with (
            asyncio.timeout(1),
            gateway.client.request(method, gateway.url + path, data=body, headers=headers) as got,
        ):
            await got.read()
    except TimeoutError:
        return None
    arrived = [seen.headers for server in servers for seen in server.seen]
    assert [each for each in arrived if EVIL in each.values()] == []
    if got.status != 200:
        return None
    (seen,) = arrived
    return {name: seen[name] for name in seen if name in CONTROL_HEADERS}


@contextlib.asynccontextmanager
async def disaggregated(folder, echo, second_echo):
    entries = [
        {
            "name": role,
            "address": "127.0.0.1",
            "port": int(server.target[10:]),
            "labels": {"llm-d.ai/role": role},
        }
        for role, server in (("decode", echo), ("prefill", second_echo))
    ]
    (folder / "endpoints.yaml").write_text(json.dumps({"endpoints": entries}))
    (folder / "config.yaml").write_text(CONFIG)
    flags = (f"--endpoints-file={folder / 'endpoints.yaml'}", f"--config-file={folder}/config.yaml")
    async with up(folder, *flags) as gateway:
        yield gateway


async def test_the_picker_speaks_and_past_it_nobody(tmp_path, echo, second_echo):
    picked = dict.fromkeys(PREFILLER, second_echo.target)
    async with disaggregated(tmp_path, echo, second_echo) as gateway:

        async def arrived(wanted):
            return await ask(gateway, (echo, second_echo)) == wanted

        assert await arrived(picked)
        gateway.child("epp serve").suspend()
        await until(lambda: arrived({}))
        assert "killed" not in gateway.said
        await gateway.says("picker is back")
        await until(lambda: arrived(picked))


async def test_a_picker_that_was_just_lost_lets_no_word_of_a_client_through(
    tmp_path, echo, second_echo
):
    async with disaggregated(tmp_path, echo, second_echo) as gateway:
        gateway.child("epp serve").kill()
        servers = echo, second_echo
        arrived = [await ask(gateway, servers, "GET", "/version") for _ in range(20)]
    assert [each for each in arrived if each] == []
    assert {} in arrived


async def test_a_rank_is_the_pickers_to_say(tmp_path, echo):
    server = {"address": "127.0.0.1", "port": int(echo.target[10:])}
    path = tmp_path / "endpoints.yaml"

    def write(**more):
        path.write_text(json.dumps({"endpoints": [{"name": "a", **server, **more}]}))

    write(dataParallelRank=3)
    async with up(tmp_path, f"--endpoints-file={path}") as gateway:
        assert await ask(gateway, [echo]) == {RANK: "3"}
    write()
    async with up(tmp_path, f"--endpoints-file={path}", name="whole") as gateway:
        assert await ask(gateway, [echo]) == {}


def away(config, target, port, admin):
    """A configuration as given, on loopback, whose picker is away, before a server that is there.

    A cluster that goes where the picker says would find no server without it.
    """
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    config["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}}
    resources = config[MARK]
    resources["listeners"] = resources["listeners"][:1]
    resources["listeners"][0] |= {"address": address, "enable_reuse_port": False}
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"][0]["typed_config"]["failure_mode_allow"] = True
    host, _, number = target.rpartition(":")
    for cluster in resources["clusters"]:
        wanted = int(number) if cluster["name"] == "pool" else quiet_port()
        point = {"socket_address": {"address": host, "port_value": wanted}}
        cluster["type"] = "STATIC"
        cluster["load_assignment"] = {
            "cluster_name": cluster["name"],
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": point}}]}],
        }
        for key in ("lb_policy", "original_dst_lb_config", "health_checks", "dns_refresh_rate"):
            cluster.pop(key, None)
    return json.dumps(config)


@pytest.mark.parametrize("name", ["docs/gateway.md", RENDERED])
async def test_what_is_given_to_operators_lets_nothing_through_without_a_picker(
    name, start_envoy, echo
):
    async with start_envoy(configurations(name)[0]) as gateway:
        assert await ask(gateway, [echo], "GET", "/v1/models") == {}


class Gateway:
    """Where an Envoy listens."""

    def __init__(self, client, port):
        self.client = client
        self.url = f"http://127.0.0.1:{port}"


@pytest.fixture
def start_envoy(tmp_path, echo):
    @contextlib.asynccontextmanager
    async def start(config):
        port, admin = quiet_port(), quiet_port()
        path = tmp_path / "envoy.json"
        path.write_text(away(config, echo.target, port, admin))
        argv = [str(envoy_binary()), "--config-path", str(path), "--disable-hot-restart"]
        process = await spawn("envoy", [*argv, "--log-level", "error"], log_dir=tmp_path)
        try:
            await process.wait_http(f"http://127.0.0.1:{admin}/ready", START_SECONDS)
            async with aiohttp.ClientSession() as client:
                yield Gateway(client, port)
        finally:
            await process.stop(0)

    return start
