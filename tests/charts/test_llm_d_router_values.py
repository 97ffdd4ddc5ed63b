"""Values of the upstream `inferencepool` chart keep their names, defaults and meaning here."""

import os
from pathlib import Path

import pytest
import yaml

from tests.charts import values as v
from tests.charts.helm import ROOT, notes, objects, only
from tests.charts.schemas import complaints

OURS = yaml.safe_load((ROOT / "charts" / "warmpick" / "values.yaml").read_text())
UPSTREAM = os.environ.get("WARMPICK_UPSTREAM_VALUES")

# By path: the defaults of upstream's chart as of v1.5.
DEFAULTS = {
    "inferenceExtension.replicas": 1,
    "inferenceExtension.extProcPort": 9002,
    "inferenceExtension.failureMode": "FailOpen",
    "inferenceExtension.env": [],
    "inferenceExtension.pluginsConfigFile": "default-plugins.yaml",
    "inferenceExtension.extraContainerPorts": [],
    "inferenceExtension.extraServicePorts": [],
    "inferenceExtension.affinity": {},
    "inferenceExtension.tolerations": [],
    "inferenceExtension.sidecar.enabled": False,
    "inferenceExtension.monitoring.interval": "10s",
    "inferenceExtension.monitoring.prometheus.enabled": False,
    "inferenceExtension.monitoring.prometheus.auth.enabled": True,
    "inferenceExtension.monitoring.prometheus.auth.secretName": (
        "inference-gateway-sa-metrics-reader-secret"
    ),
    "inferenceExtension.monitoring.prometheus.extraLabels": {},
    "inferenceExtension.tracing.enabled": False,
    "inferenceExtension.latencyPredictor.enabled": False,
    "inferenceExtension.metricsDataSource.scheme": "http",
    "inferenceExtension.metricsDataSource.path": "/metrics",
    "inferenceExtension.metricsDataSource.insecureSkipVerify": True,
    "inferencePool.targetPorts": [{"number": 8000}],
    "inferencePool.modelServerType": "vllm",
    "inferencePool.modelServerProtocol": "http",
    "inferencePool.parser": "",
    "inferencePool.apiVersion": "inference.networking.k8s.io/v1",
    "provider.name": "none",
    "provider.gke.autopilot": False,
    "provider.istio.destinationRule.host": "",
    "provider.istio.destinationRule.trafficPolicy": {},
    "experimentalHttpRoute.enabled": False,
    "experimentalHttpRoute.inferenceGatewayName": "inference-gateway",
    "experimentalHttpRoute.inferenceGatewayNamespace": "",
    "experimentalHttpRoute.requestTimeout": "300s",
    "inferenceObjectives": [],
}


@pytest.mark.parametrize("path", DEFAULTS)
def test_a_default_is_upstreams(path):
    value = OURS
    for name in path.split("."):
        value = value[name]
    assert value == DEFAULTS[path]


def test_the_whole_of_a_values_file_as_upstream_has_it_renders():
    text = """
      inferenceExtension:
        replicas: 2
        image: {registry: r.example, repository: epp, tag: main, pullPolicy: Always}
        extProcPort: 9012
        failureMode: FailClose
        env: [{name: ENABLE_EXPERIMENTAL_FEATURE, value: "true"}]
        flags: {v: 4}
        resources: {requests: {cpu: "4", memory: 8Gi}, limits: {memory: 16Gi}}
        tracing:
          enabled: false
          otelExporterEndpoint: http://localhost:4317
          sampling: {sampler: parentbased_traceidratio, samplerArg: "0.1"}
        latencyPredictor: {enabled: false, trainingServer: {port: 8000}}
      inferencePool:
        modelServerType: sglang
        modelServers: {matchLabels: {app: sglang}}
      provider: {name: gke, gke: {autopilot: true}}
    """
    things = objects("warmpick", yaml.safe_load(text))
    assert [found for thing in things for found in complaints(thing)] == []
    container = only(things, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "r.example/epp:main"
    assert {"--ha-enable-leader-election=true", "--v=4"} <= set(container["args"])
    picker = only(things, "InferencePool")["spec"]["endpointPickerRef"]
    assert (picker["port"]["number"], picker["failureMode"]) == (9012, "FailClose")


OLDER = """
  inferenceExtension:
    image: {hub: registry.example, name: epp, tag: v1.1.0, pullPolicy: Always}
    flags: [{name: v, value: 1}]
    monitoring: {interval: 5s, secret: {name: reader}, gke: {enabled: true}}
  inferencePool:
    targetPorts: [{number: 8000}]
    modelServerType: vllm
    modelServers: {matchLabels: {app: vllm}}
    apiVersion: inference.networking.x-k8s.io/v1alpha2
    targetPortNumber: 8100
  provider: {name: istio}
  istio: {destinationRule: {host: epp.example}}
"""


def test_names_that_values_had_before_v1_5_mean_what_they_meant():
    values = yaml.safe_load(OLDER)
    things = objects("warmpick", values)
    assert [found for thing in things for found in complaints(thing)] == []
    container = only(things, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "registry.example/epp:v1.1.0"
    assert "--v=1" in container["args"]
    assert only(things, "InferencePool")["spec"]["targetPortNumber"] == 8100
    assert only(things, "DestinationRule")["spec"]["host"] == "epp.example"
    assert only(things, "PodMonitoring")["spec"]["endpoints"][0]["interval"] == "5s"
    said = notes("warmpick", v.merged(v.POOL, {"inferencePool": {"targetPortNumber": 8100}}))
    assert "- inferencePool.targetPortNumber: it belongs to v1alpha2" in said


BEFORE_ROUTER = """
  inferenceExtension:
    flags:
    endpointsServer:
      createInferencePool: false
      endpointSelector: app=vllm
      targetPorts: [8000]
      modelServerType: vllm
      modelServerProtocol: grpc
    sidecar:
      enabled: true
      proxyType: envoy
      resources: {requests: {cpu: "4"}, limits: {memory: 16Gi}}
      args: [-c, /etc/envoy/envoy.yaml]
      agentgateway: {service: {create: true, name: "", namespace: "", ports: [8000]}}
      presets:
        envoy:
          name: envoy-sidecar
          image: registry.example/envoy:v1.33.2
          command: envoy
          args: [--log-level, trace, -c, /etc/envoy/envoy.yaml]
          configMap: {name: envoy, data: {envoy.yaml: "admin: {}"}}
          volumes: [{name: config, configMap: {name: envoy}}]
        agentgateway: {image: registry.example/agentgateway:v1}
    monitoring:
      interval: 10s
      provider: {name: gmp, gmp: {autopilot: true}}
      prometheus: {enabled: true, auth: {enabled: true, secretName: reader}}
  inferencePool: {modelServerProtocol: http}
"""
"""In the shape that llm-d-router's charts had before `router`."""


def test_names_that_values_had_before_router_mean_what_they_meant():
    things = objects("warmpick", yaml.safe_load(BEFORE_ROUTER))
    assert [found for thing in things for found in complaints(thing)] == []
    pod = only(things, "Deployment")["spec"]["template"]["spec"]
    (proxy,) = pod["initContainers"]
    assert (proxy["image"], proxy["command"]) == ("registry.example/envoy:v1.33.2", ["envoy"])
    assert proxy["args"] == ["-c", "/etc/envoy/envoy.yaml"]
    assert only(things, "ConfigMap", "envoy")["data"]["envoy.yaml"].strip() == "admin: {}"
    assert [each["name"] for each in pod["volumes"]].count("config") == 1
    assert "vllmgrpc-parser" in only(things, "ConfigMap", "rel-epp")["data"]["default-plugins.yaml"]
    assert only(things, "PodMonitoring")["spec"]["endpoints"][0]["interval"] == "10s"
    collector = {"kind": "ServiceAccount", "name": "collector", "namespace": "gke-gmp-system"}
    assert [collector] in [each.get("subjects") for each in things]


def test_a_pool_without_a_version_said_is_of_v1():
    unsaid = v.merged(v.POOL, {"inferencePool": {"apiVersion": ""}})
    assert objects("warmpick", unsaid) == objects("warmpick", v.POOL)


def test_a_chart_that_depends_on_these_may_switch_them_on():
    # `condition: warmpick.enabled` hands the word down, too.
    assert objects("warmpick", v.merged(v.POOL, {"enabled": True})) == objects("warmpick", v.POOL)
    servers = objects("model-server", {"model": "m", "enabled": True, "global": {}})
    assert servers == objects("model-server", {"model": "m"})


def test_upstreams_own_files_render():
    if UPSTREAM is None:
        pytest.skip(
            "NOT TESTED: the values files of upstream's own examples: set"
            " WARMPICK_UPSTREAM_VALUES to a folder of them"
        )
    files = sorted(Path(UPSTREAM).glob("*.yaml"))
    assert files
    for path in files:
        things = objects("warmpick", v.merged(yaml.safe_load(path.read_text()), v.POOL))
        assert [found for thing in things for found in complaints(thing)] == [], path
