"""Where the values of llm-d-router's charts show in the objects."""

import pytest
import yaml

from tests.charts import router_values as r
from tests.charts.helm import objects, only
from tests.charts.picker import container, containers


def rendered(name):
    return objects("warmpick", r.CASES[name])


def service_ports(things, name="rel-epp"):
    return {each["name"]: each["port"] for each in only(things, "Service", name)["spec"]["ports"]}


def spec(things, name="rel-epp"):
    return only(things, "Deployment", name)["spec"]


def labels(things):
    return spec(things)["selector"]["matchLabels"]


def strategy(things):
    return spec(things)["strategy"]


def pool(things):
    return only(things, "InferencePool")["spec"]


def env(things):
    return {each["name"]: each.get("value") for each in container(things)["env"]}


def beside(things, name):
    """A container of the picker's pod."""
    pod = spec(things)["template"]["spec"]
    return next((each for each in containers(pod) if each["name"] == name), None)


def envoy(things, name="envoy"):
    """Envoy's configuration: its picker's cluster, and whether it goes on without a picker."""
    config = yaml.safe_load(only(things, "ConfigMap", name)["data"]["envoy.yaml"])
    clusters = {each["name"]: each for each in config["static_resources"]["clusters"]}
    cluster = clusters.get("epp") or clusters["ext_proc"]
    (group,) = cluster["load_assignment"]["endpoints"]
    address = group["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
    return cluster["type"], address["address"], address["port_value"]


def preference(things, name):
    """Which Service a policy of GKE is about, how it is preferred, and what it can take."""
    policy = only(things, "GCPBackendPolicy", name)["spec"]
    default = policy["default"]
    return policy["targetRef"]["name"], default["backendPreference"], default["maxRatePerEndpoint"]


def priorities(things):
    """Envoy's priorities of the pickers, by the first part of their names."""
    config = yaml.safe_load(only(things, "ConfigMap", "envoy")["data"]["envoy.yaml"])
    (cluster,) = [each for each in config["static_resources"]["clusters"] if each["name"] == "epp"]
    return [
        (group["priority"], point["endpoint"]["address"]["socket_address"]["address"].split(".")[0])
        for group in cluster["load_assignment"]["endpoints"]
        for point in group["lb_endpoints"]
    ]


HOST = "rel-epp.inf.svc.cluster.local"
HOME = {"name": "HF_HOME", "value": "/cache/huggingface"}
SHOWS = [
    ("gateway", labels, {"llm-d-router-gateway": "rel-epp"}),
    ("standalone", labels, {"llm-d-router-standalone": "rel-epp"}),
    ("gateway", service_ports, {"grpc-ext-proc": 9002, "http-metrics": 9090}),
    ("standalone", service_ports, {"grpc-ext-proc": 9002, "http-metrics": 9090, "http": 8081}),
    ("standalone-guide", lambda things: service_ports(things)["http"], 80),
    ("service", service_ports, {"grpc-ext-proc": 9002, "http-metrics": 9090}),
    ("service", lambda things: service_ports(things, "rel-proxy"), {"http": 8081}),
    ("gateway", strategy, {"type": "Recreate"}),
    (
        "scaled",
        strategy,
        {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    ),
    ("scaled", lambda things: "replicas" in spec(things), False),
    ("active-active", lambda things: spec(things)["replicas"], 2),
    ("service", lambda things: spec(things, "rel-proxy")["replicas"], 2),
    ("gateway", lambda things: pool(things)["appProtocol"], "http"),
    ("gateway-gke-grpc", lambda things: pool(things)["appProtocol"], "kubernetes.io/h2c"),
    ("gateway", lambda things: pool(things)["endpointPickerRef"]["failureMode"], "FailOpen"),
    ("ranks", lambda things: pool(things)["targetPorts"], [{"number": 8000}, {"number": 8001}]),
    ("gateway-gke-grpc", lambda t: container(t)["livenessProbe"]["grpc"]["port"], 9103),
    ("traced", lambda things: env(things)["OTEL_TRACES_SAMPLER_ARG"], "0.1"),
    ("traced", lambda t: "--tracing=true" in container(t)["args"], True),
    ("gateway", lambda t: "--tracing=false" in container(t)["args"], True),
    ("preferred", lambda t: pool(t)["endpointPickerRef"]["name"], "rel-epp-backup"),
    ("preferred", lambda t: only(t, "StatefulSet")["spec"]["replicas"], 2),
    ("preferred", lambda t: preference(t, "rel"), ("rel-epp", "PREFERRED", 100)),
    ("preferred", lambda t: preference(t, "rel-backup"), ("rel-epp-backup", "DEFAULT", 100)),
    ("priority", lambda t: only(t, "StatefulSet")["spec"]["serviceName"], "rel-epp-headless"),
    ("priority", priorities, [(0, "rel-epp-0"), (1, "rel-epp-1")]),
    ("priority", lambda t: "--ha-enable-leader-election=true" in container(t)["args"], False),
    ("standalone-guide", lambda t: "--v=2" in container(t)["args"], True),
    ("standalone-guide", lambda t: beside(t, "envoy-proxy")["args"][1], "envoy-sidecar"),
    ("service", lambda things: beside(things, "envoy-proxy"), None),
    (
        "standalone",
        lambda t: [each["name"] for each in beside(t, "envoy-proxy")["ports"]],
        ["http-8081", "metrics-19001"],
    ),
    ("tokenizer", lambda t: beside(t, "vllm-render")["args"], ["Qwen/Qwen3-32B", "--port=8000"]),
    ("tokenizer", lambda t: beside(t, "vllm-render")["env"][0], HOME),
    (
        "tokenizer",
        lambda t: beside(t, "vllm-render")["volumeMounts"][0]["mountPath"],
        HOME["value"],
    ),
    ("standalone", envoy, ("STATIC", "127.0.0.1", 9002)),
    ("service", envoy, ("STRICT_DNS", HOST, 9002)),
    ("own-envoy", envoy, ("STATIC", "127.0.0.1", 9002)),
    ("guards", lambda t: spec(t)["template"]["spec"]["securityContext"]["runAsUser"], 65532),
    ("guards", lambda t: spec(t)["template"]["spec"]["imagePullSecrets"], [{"name": "pull"}]),
    ("objectives", lambda t: only(t, "InferenceObjective")["spec"]["priority"], 5),
]


@pytest.mark.parametrize(("name", "shown", "value"), SHOWS)
def test_values_show_where_they_belong(name, shown, value):
    assert shown(rendered(name)) == value


FLAGS = {
    *("pool-name", "pool-namespace", "pool-group", "endpoint-selector", "endpoint-target-ports"),
    *("config-file", "grpc-health-port", "health-checking", "ha-enable-leader-election"),
    *("drain-timeout", "secure-serving", "metrics-endpoint-auth", "tracing", "zap-encoder", "v"),
}
"""Flags of llm-d-router's own, so that its image can be put back."""


@pytest.mark.parametrize("name", r.CASES)
def test_arguments_are_llm_d_routers_flags(name):
    args = container(rendered(name))["args"]
    assert {each.partition("=")[0] for each in args} <= {f"--{flag}" for flag in FLAGS}
