"""The proxy that the chart puts beside the picker, run as rendered but for addresses and ports."""

import asyncio
import contextlib
import json
import sys

import aiohttp
import pytest
import yaml

from epp.gateway.envoy import envoy_binary
from epp.gateway.processes import free_port, spawn
from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import objects, only
from tests.charts.picker import container

SECONDS = 60
HERE = "127.0.0.1"
TARGET = "x-gateway-destination-endpoint"
CHAT = {"model": "sim-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def here(text, ports):
    """Move a rendered configuration to loopback, and its ports to free ones."""
    config = yaml.safe_load(text)
    resources = config["static_resources"]
    clusters = [
        point["endpoint"]
        for cluster in resources["clusters"]
        for group in cluster.get("load_assignment", {}).get("endpoints", ())
        for point in group["lb_endpoints"]
    ]
    for place in (*resources["listeners"], *clusters, config["admin"]):
        address = place["address"]["socket_address"]
        address |= {"address": HERE, "port_value": ports[address["port_value"]]}
    for listener in resources["listeners"]:
        listener["enable_reuse_port"] = False
        listener.pop("additional_addresses", None)
    return json.dumps(config)


@contextlib.asynccontextmanager
async def running(process):
    started = await process
    try:
        yield started
    finally:
        await started.stop(0)


class Pod:
    """A model server, and the picker's pod: the picker with the chart's flags, and its proxy."""

    def __init__(self, folder, values, proxy):
        self.folder = folder
        self.proxy = proxy
        self.ports = {port: free_port() for port in (8081, 9002, 9003, 9090, 19000, 19001)}
        self.things = objects("warmpick", values)

    def url(self, port, path):
        return f"http://{HERE}:{self.ports[port]}{path}"

    def picker(self, target):
        endpoints = self.folder / "endpoints.yaml"
        entry = {"name": "a", "address": HERE, "port": int(target.rpartition(":")[2])}
        endpoints.write_text(json.dumps({"endpoints": [entry]}))
        serving = [
            *(sys.executable, "-m", "epp", "serve", f"--bind-address={HERE}"),
            *(f"--endpoints-file={endpoints}", "--log-format=json"),
            f"--grpc-port={self.ports[9002]}",
            f"--grpc-health-port={self.ports[9003]}",
            f"--metrics-port={self.ports[9090]}",
        ]
        args = container(self.things)["args"]
        kept = [flag for flag in args if flag.startswith("--health-checking")]
        assert kept == ["--health-checking=true"]
        return spawn("epp", [*serving, *kept], log_dir=self.folder)

    def envoy(self, connections="30s"):
        text = only(self.things, "ConfigMap", self.proxy)["data"]["envoy.yaml"]
        lasting = "max_connection_duration: "
        assert f"{lasting}30s" in text
        text = text.replace(f"{lasting}30s", f"{lasting}{connections}")
        path = self.folder / "envoy.yaml"
        path.write_text(here(text, self.ports))
        argv = [str(envoy_binary()), "--config-path", str(path), "--disable-hot-restart"]
        return spawn("envoy", [*argv, "--log-level", "warning"], log_dir=self.folder)


@pytest.fixture
async def client():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SECONDS)) as session:
        yield session


CLOSED = r.router(proxy={"failOpen": False})


@pytest.mark.parametrize(
    ("values", "proxy", "without"),
    [
        (v.merged(v.CASES["standalone"], v.OPEN), "rel-epp-envoy", 503),
        (v.both(r.STANDALONE, CLOSED), "envoy", 503),
        (r.STANDALONE, "envoy", 200),  # fails open: ready with or without a picker
    ],
)
async def test_requests_go_where_the_picker_says_and_nowhere_while_it_is_gone(
    values, proxy, without, client, tmp_path
):
    pod = Pod(tmp_path, values, proxy)
    server = spawn(
        "server", [sys.executable, "-m", "model_server.simulator", "--port", "0"], log_dir=tmp_path
    )
    async with running(server) as engine, running(pod.envoy()) as envoy:
        line = await engine.wait_ready_line(SECONDS)
        await envoy.wait_http(pod.url(19000, "/ready"), SECONDS)
        await envoy.wait_http(pod.url(19001, "/ready"), SECONDS, without)
        async with running(pod.picker(f"{HERE}:{line['port']}")) as picker:
            await picker.wait_http(pod.url(19001, "/ready"), SECONDS)
            await picker.wait_http(pod.url(8081, "/v1/models"), SECONDS)
            url = pod.url(8081, "/v1/chat/completions")
            elsewhere = {TARGET: f"{HERE}:{pod.ports[19000]}"}
            async with client.post(url, json=CHAT, headers=elsewhere) as response:
                answer = await response.json()
            assert (response.status, answer["model"]) == (200, "sim-model")
            async with client.get(pod.url(8081, "/v1/models"), headers=elsewhere) as response:
                assert response.status == 200
            async with client.get(pod.url(19001, "/stats/prometheus")) as response:
                assert 'envoy_cluster_upstream_rq_total{envoy_cluster_name="pool"}' in (
                    await response.text()
                )
            async with client.get(pod.url(19001, "/config_dump")) as response:
                assert response.status == 404
        async with client.get(pod.url(8081, "/v1/models"), headers=elsewhere) as response:
            assert response.status in {500, 503}
        await envoy.wait_http(pod.url(19001, "/ready"), SECONDS, without)


class Relay:
    """A Service: passes connections on to a picker, until told that this one is gone."""

    def __init__(self, port):
        self.port = port
        self.refused = 0
        self._open = set()
        self._jobs = set()

    async def pass_on(self, reader, writer):
        if self.refused:
            self.refused -= 1
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection(HERE, self.port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, there[1]}
        for source, sink in ((reader, there[1]), (there[0], writer)):
            job = asyncio.create_task(self._copy(source, sink))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

    async def _copy(self, source, sink):
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    def lose(self, more):
        """Reset all connections, and some of those that come next."""
        self.refused = more
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()


async def test_a_picker_that_goes_costs_no_request_of_a_proxy_by_itself(client, tmp_path):
    pod = Pod(tmp_path, v.both(r.SERVICE, CLOSED), "envoy")
    server = spawn(
        "server", [sys.executable, "-m", "model_server.simulator", "--port", "0"], log_dir=tmp_path
    )
    service, pod.ports[9002] = pod.ports[9002], free_port()
    relay = Relay(pod.ports[9002])
    async with (
        running(server) as engine,
        await asyncio.start_server(relay.pass_on, HERE, service),
    ):
        line = await engine.wait_ready_line(SECONDS)
        async with running(pod.picker(f"{HERE}:{line['port']}")):
            pod.ports[9002] = service
            async with running(pod.envoy()) as envoy:
                await envoy.wait_http(pod.url(8081, "/v1/models"), SECONDS)
                for _ in range(3):
                    relay.lose(2)
                    async with client.post(
                        pod.url(8081, "/v1/chat/completions"), json=CHAT
                    ) as response:
                        assert response.status == 200
                    assert relay.refused == 0


@pytest.mark.parametrize("values", [v.CASES["standalone"], r.STANDALONE])
async def test_clients_connect_anew_now_and_then_and_streams_end_first(values, client, tmp_path):
    """Else those with connections to a pod that is to go use it until it is gone."""
    pod = Pod(tmp_path, values, "envoy" if values is r.STANDALONE else "rel-epp-envoy")
    server = spawn(
        "server", [sys.executable, "-m", "model_server.simulator", "--port", "0"], log_dir=tmp_path
    )
    async with (
        running(server) as engine,
        running(pod.envoy("0.3s")) as envoy,
    ):
        line = await engine.wait_ready_line(SECONDS)
        await envoy.wait_http(pod.url(19000, "/ready"), SECONDS)
        async with running(pod.picker(f"{HERE}:{line['port']}")) as picker:
            await picker.wait_http(pod.url(8081, "/v1/models"), SECONDS)
            url = pod.url(8081, "/v1/chat/completions")
            long = {**CHAT, "stream": True, "max_tokens": 200}
            async with client.post(url, json=long) as response:
                answer = await response.read()
                assert answer.endswith(b"data: [DONE]\n\n")
                assert (response.status, answer.count(b"data: ") > 200) == (200, True)
            async with asyncio.timeout(SECONDS):
                while True:
                    async with client.post(url, json=CHAT) as response:
                        assert response.status == 200
                        if response.headers.get("connection") == "close":
                            break
