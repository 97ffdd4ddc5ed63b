"""Three of llm-d-router's guides: values of its charts, pods, and the picker and Envoy they give.

Facts from llm-d's `guides/` of autumn 2026: `recipes/router/base.values.yaml` below each guide's
own values, with monitoring on. Ports are free ones of this machine, and the render Service of the
third guide is a pod's own address; nothing else is changed.
"""

import asyncio
import json
import os
import sys
from typing import Any

import aiohttp
from aiohttp import web

from e2e.corridor import START_SECONDS, TRANSPORT, quiet_port
from e2e.kube_corridor import KubeCorridor
from e2e.serving import serving
from epp.gateway.envoy import envoy_binary
from epp.gateway.processes import spawn
from tests.adapters.kube.rig import pod
from tests.charts import router_values as r
from tests.charts.helm import objects, only
from tests.charts.picker import container
from tests.charts.test_standalone import here
from tests.charts.values import merged

NAMESPACE = "llm-d"
MODEL = "Qwen/Qwen3-32B"
CONFIG = "default-plugins.yaml"
PREFILLER = "x-prefiller-host-port"
ROLE, GUIDE = "llm-d.ai/role", "llm-d.ai/guide"
OPTIMIZED = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: token-load-scorer
- type: inflight-load-producer
- {type: approx-prefix-cache-producer, parameters: {maxPrefixTokensToMatch: 40960}}
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.80, maxTokensInFlightPenalty: 286720, maxTTFTPenaltyMs: 0}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-affinity-filter}, {pluginRef: token-load-scorer}]
"""
DISAGGREGATED = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: always-disagg-pd-decider
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- type: prefill-filter
- type: decode-filter
- {type: approx-prefix-cache-producer, parameters: {maxPrefixTokensToMatch: 131072}}
- type: inflight-load-producer
- {type: prefix-cache-affinity-filter, parameters: {peakPrefillThroughput: 33821}}
- type: token-load-scorer
- type: active-request-scorer
- type: max-score-picker
schedulingProfiles:
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: prefix-cache-affinity-filter}
  - {pluginRef: token-load-scorer}
  - {pluginRef: max-score-picker}
- name: decode
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: active-request-scorer}
  - {pluginRef: max-score-picker}
"""
PRECISE = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: token-producer
  parameters: {modelName: Qwen/Qwen3-32B, vllm: {url: "http://$RENDER"}}
- type: endpoint-notification-source
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSizeTokens: 64}
    speculativeIndexing: true
    indexerConfig: {kvBlockIndexConfig: {enableMetrics: true}}
    kvEventsConfig:
      topicFilter: "kv@"
      concurrency: 8
      discoverPods: true
      podDiscoveryConfig: {socketPort: $EVENTS}
- type: inflight-load-producer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: prefix-cache-affinity-filter
  parameters:
    prefixMatchInfoProducerName: precise-prefix-cache-producer
    peakPrefillThroughput: 15926
- type: token-load-scorer
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: precise-prefix-cache-producer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-affinity-filter}, {pluginRef: token-load-scorer}]
"""
GUIDES = {
    "optimized-baseline": (OPTIMIZED, {"decode-0": "", "decode-1": "", "decode-2": ""}),
    "pd-disaggregation": (
        DISAGGREGATED,
        {name: name[:-2] for name in ("prefill-0", "prefill-1", "prefill-2", "decode-0")},
    ),
    "precise-prefix-cache-routing": (
        PRECISE,
        {"decode-0": "decode", "decode-1": "decode", "decode-2": "decode"},
    ),
}
"""Each guide's configuration, and its pods with their roles."""
ENVIRONMENT = {"NAMESPACE": NAMESPACE, "POD_NAME": "guide-epp-5d9c6b7f4-abcde", "HF_TOKEN": "hf_x"}


class Sidecar:
    """What is beside a decode pod's model server: has prompts computed where a header says."""

    def __init__(self, client: aiohttp.ClientSession, server: str) -> None:
        self.client = client
        self.server = server
        self.prefills: list[tuple[str, dict[str, int]]] = []
        """Who computed each prompt, and its usage."""

    async def answer(self, http: web.Request) -> web.StreamResponse:
        """Have the prompt computed, then have the pod's own model server answer."""
        body = await http.read()
        headers = {"content-type": "application/json"}
        if where := http.headers.get(PREFILLER):
            alone = json.loads(body) | {"max_tokens": 1, "stream": False}
            alone.pop("stream_options", None)
            async with self.client.post(f"http://{where}{http.path}", json=alone) as response:
                self.prefills.append((where, (await response.json())["usage"]))
        async with self.client.request(
            http.method, self.server + http.path_qs, data=body, headers=headers
        ) as response:
            kind = response.headers.get("content-type", "text/plain")
            whole = web.StreamResponse(status=response.status, headers={"content-type": kind})
            await whole.prepare(http)
            async for piece in response.content.iter_any():
                await whole.write(piece)
            await whole.write_eof()
            return whole


class GuideCorridor(KubeCorridor):
    """What `helm install GUIDE charts/warmpick -f base.values.yaml -f GUIDE.values.yaml` starts."""

    guide = ""
    without_file = False

    def follow(self, guide: str) -> None:
        """Render a guide's values; have the namespace, the pool, and the picker's account."""
        self.guide = guide
        self.configuration = GUIDES[guide][0]
        self.behind: dict[str, int] = {}
        self.sidecars: list[Sidecar] = []
        self.events_port = quiet_port()
        self.things = objects("warmpick", self.values(), release=guide, namespace=NAMESPACE)
        self.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self.api.put(only(self.things, "InferencePool"))
        for role in (each for each in self.things if each["kind"] == "Role"):
            self.api.token("epp", role["rules"], NAMESPACE)
        cluster = only(self.things, "ClusterRole", f"{guide}-{NAMESPACE}-epp")
        token = self.api.token("epp", cluster["rules"])
        self.kubeconfig = self.api.kubeconfig(self.directory / "account", user={"token": token})
        reader = only(self.things, "ClusterRole", f"{guide}-{NAMESPACE}-epp-metrics-reader")
        self.scraper = self.api.token("prometheus", reader["rules"])

    def values(self) -> dict[str, Any]:
        """The guide's values, as `helm install` gets them."""
        own = {
            "extraServicePorts": r.HTTP,
            "monitoring": {"prometheus": {"enabled": True}},
            "epp": {
                "pluginsConfigFile": f"{self.guide}-plugins.yaml",
                "pluginsCustomConfig": {f"{self.guide}-plugins.yaml": self.configuration},
                "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf"}}}],
            },
            "modelServers": {
                "type": "vllm",
                "targetPorts": [{"number": self.pod_port}],
                "matchLabels": {GUIDE: self.guide},
            },
        }
        values: dict[str, Any] = merged(r.BASE, {"router": own})
        return values

    async def start_pods(self) -> None:
        """Start the guide's model servers."""
        await asyncio.gather(*(self.start_pod(name) for name in GUIDES[self.guide][1]))

    async def start_pod(self, name: str) -> None:
        """Start a model server with its KV events, then have its pod, ready.

        In the guide to P/D a decode pod's model server is behind a sidecar.
        """
        address = self._addresses[name] = next(self._unused)
        role = GUIDES[self.guide][1][name]
        port = self.pod_port
        if self.guide == "pd-disaggregation" and role == "decode":
            port = self.behind[name] = quiet_port()
            sidecar = Sidecar(self.client, f"http://{address}:{port}")
            self.sidecars.append(sidecar)
            await self._stop.enter_async_context(
                serving(sidecar.answer, at=(address, self.pod_port), most_bytes=64 << 20)
            )
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://{address}:{self.events_port}",
            "topic": f"kv@{address}:{self.pod_port}@{MODEL}",
        }
        where = ("--host", address, "--port", str(port), "--name", name)
        flags = (*self.plan.server_flags, "--kv-events-config", json.dumps(events))
        argv = (*self.plan.argv[:3], *where, "--served-model-name", MODEL, *flags)
        self.servers[name] = await spawn(f"server-{name}", argv, log_dir=self.directory)
        await self.servers[name].wait_ready_line(START_SECONDS * 10)
        labels = {GUIDE: self.guide} | ({ROLE: role} if role else {})
        self.api.put(pod(name, address, labels=labels, namespace=NAMESPACE))

    def server(self, name: str) -> str:
        """Where a pod's model server is."""
        return f"{self._addresses[name]}:{self.behind.get(name, self.pod_port)}"

    def arguments(self) -> list[str]:
        """The container's arguments, with the files of its ConfigMap where they are mounted."""
        folder = self.directory / "config"
        folder.mkdir(exist_ok=True)
        files = dict(only(self.things, "ConfigMap", f"{self.guide}-epp")["data"])
        files[f"{self.guide}-plugins.yaml"] = self.configuration
        for name, text in files.items():
            render = self.server(next(iter(self._addresses)))
            placed = text.replace("$RENDER", render).replace("$EVENTS", str(self.events_port))
            (folder / name).write_text(placed)
        given = [each.replace("/config/", f"{folder}/") for each in container(self.things)["args"]]
        return [each for each in given if not (self.without_file and "--config-file" in each)]

    async def spawn_picker(self) -> None:
        """Start the picker with exactly the chart's arguments, on this machine's ports."""
        argv = [
            *(sys.executable, "-m", "epp", *self.arguments(), *self.plan.picker_flags),
            *(f"--grpc-port={self.grpc_port}", f"--grpc-health-port={self.health_port}"),
            *(f"--metrics-port={self.metrics_port}", f"--transport={TRANSPORT}"),
        ]
        environment = os.environ | ENVIRONMENT | {"KUBECONFIG": str(self.kubeconfig)}
        self.picker = await spawn("epp", argv, log_dir=self.directory, env=environment)
        self._stop.push_async_callback(self.picker.stop, 0)

    async def start_gateway(self) -> None:
        """Start the proxy that the chart has beside the picker, with the chart's configuration."""
        ports = {8081: self.port, 9002: self.grpc_port, 19000: self.admin_port}
        ports[19001] = quiet_port()
        ports[9003] = self.health_port
        path = self.directory / "envoy.yaml"
        path.write_text(here(only(self.things, "ConfigMap", "envoy")["data"]["envoy.yaml"], ports))
        argv = [str(envoy_binary()), "-c", str(path), "--disable-hot-restart"]
        argv += ["--log-level", "warn", "--concurrency", "1"]
        self.envoy = await spawn("envoy", argv, log_dir=self.directory)
        self._stop.push_async_callback(self.envoy.stop, 0)
        await self.envoy.wait_http(f"http://127.0.0.1:{self.admin_port}/ready", START_SECONDS)

    async def page(self) -> str:
        """The metrics page, read as the chart's reader may."""
        headers = {"authorization": f"Bearer {self.scraper}"}
        async with self.client.get(self.operator_url("/metrics"), headers=headers) as response:
            assert response.status == 200, response.status
            return await response.text()
