"""What the picker's NetworkPolicy lets in and out."""

import pytest

from tests.charts import values as v
from tests.charts.helm import objects, only
from tests.charts.schemas import complaints

CHART = "warmpick"


def opened(direction, *values):
    """The rules of the NetworkPolicy that have this direction, as their ports."""
    policy = only(objects(CHART, v.merged(v.POOL, v.FENCED, *values)), "NetworkPolicy")["spec"]
    return [
        [(each.get("port"), each["protocol"]) for each in rule["ports"]]
        for rule in policy[direction]
    ]


def test_a_network_policy_lets_in_what_the_values_open():
    debug = v.epp(
        extraContainerPorts=[
            {"name": "events", "containerPort": 5557},
            {"name": "trap", "containerPort": 5162, "protocol": "UDP"},
        ]
    )
    assert [(5557, "TCP"), (5162, "UDP")] in opened("ingress", debug)
    assert [(5000, "TCP")] in opened("ingress", v.CASES["sidecar"])
    assert opened("ingress")[0] == [(9002, "TCP")]


def test_a_network_policy_lets_names_be_looked_up():
    # OpenShift's DNS: port 53 of the Service is 5353 of its pods, which is what a policy sees.
    names, *_ = opened("egress")
    assert sorted(names) == [(port, kind) for port in (53, 5353) for kind in ("TCP", "UDP")]


RULES = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: token-producer
  parameters:
    modelName: m
    vllm: {endpointDiscovery: {portRules: [{basePort: 7000}]}}
"""
RANKS = v.merged(
    v.TOKENS,
    v.epp(kvEvents={"enabled": True, "port": 5557, "replayPort": 6557}),
    {"inferencePool": {"targetPorts": [{"number": 8000}, {"number": 8001}]}},
)


@pytest.mark.parametrize(
    ("values", "ports"),
    [
        ({}, {8000}),
        (v.epp(flags={"model-server-metrics-port": 9400}), {8000, 9400}),
        (v.epp(flags={"config-text": RULES}), {8000, 7000}),
        # The publisher of a rank, and its replay, are at the port plus the rank.
        (RANKS, {8000, 8001, 5557, 5558, 6557, 6558}),
    ],
)
def test_a_network_policy_lets_the_picker_ask_model_servers_wherever_they_answer(values, ports):
    things = objects(CHART, v.merged(v.POOL, v.FENCED, values))
    assert [found for thing in things for found in complaints(thing)] == []
    servers = only(things, "InferencePool")["spec"]["selector"]
    egress = only(things, "NetworkPolicy")["spec"]["egress"]
    rules = [each for each in egress if each.get("to") == [{"podSelector": servers}]]
    allowed = [port for rule in rules for port in rule["ports"] if port["protocol"] == "TCP"]
    assert {port for port in ports if any(each.get("port", port) == port for each in allowed)} == (
        ports
    )
    everywhere = [port for rule in egress if "to" not in rule for port in rule["ports"]]
    assert all("port" in each for each in everywhere)


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://collector.observability:4317", 4317),
        ("https://collector:14317/", 14317),
        ("collector:4318", 4318),
        ("http://collector", 4317),
        ("http://localhost:4317", None),
        ("http://127.0.0.1:4317", None),
        ("http://[::1]:4317", None),
    ],
)
def test_a_network_policy_lets_spans_out_to_their_collector(endpoint, port):
    traced = v.epp(tracing={"enabled": True, "otelExporterEndpoint": endpoint})
    more = [each for each in opened("egress", traced) if each not in opened("egress")]
    assert more == ([[(port, "TCP")]] if port else [])
    off = v.epp(tracing={"enabled": False, "otelExporterEndpoint": endpoint})
    assert opened("egress", off) == opened("egress")
