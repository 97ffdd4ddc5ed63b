"""What the chart `warmpick` does not take, and that it says which value and what to do."""

import pytest

from tests.charts import values as v
from tests.charts.helm import refused_or_rendered

GRPC = {"inferencePool": {"modelServerProtocol": "grpc"}}


def ports(given):
    return v.merged(v.SELECTOR, v.epp(endpointsServer={"targetPorts": given}))


def pool_ports(*numbers):
    return {"inferencePool": {"targetPorts": [{"number": number} for number in numbers]}}


@pytest.mark.parametrize(
    ("base", "values", "words"),
    [
        ({}, {}, "modelServers.matchLabels is needed"),
        (v.FENCED, {"inferencePool": {"create": False}}, "modelServers.matchLabels is needed"),
        (v.SELECTOR, v.epp(endpointsServer={"endpointSelector": ""}), "endpointSelector is needed"),
        (v.SELECTOR, v.ROUTED, "experimentalHttpRoute.enabled needs an InferencePool"),
        (
            v.SELECTOR,
            {"inferenceObjectives": [{"name": "a", "priority": 1}]},
            "inferenceObjectives needs an InferencePool",
        ),
        (v.SELECTOR, v.provider("gke"), "provider.name=gke is about InferencePools"),
        (v.POOL, pool_ports(*range(8000, 8009)), "at '/inferencePool/targetPorts': maxItems"),
        (v.POOL, pool_ports(), "at '/inferencePool/targetPorts': minItems"),
        (v.POOL, pool_ports(0), "at '/inferencePool/targetPorts/0/number': minimum"),
        (v.POOL, pool_ports(8000, 8000), "target ports must differ"),
        ({}, ports(list(range(8000, 8009))), "a pool has 1 to 8 target ports, not 9"),
        ({}, ports("8000,http"), "target ports are numbers from 1 to 65535"),
        (v.POOL, v.epp(pluginsConfigFile="mine.yaml"), '"mine.yaml", which'),
        (v.POOL, v.epp(replicas=0), "at '/inferenceExtension/replicas': minimum"),
        (v.POOL, v.epp(replica=3), "additional properties 'replica' not allowed"),
        (v.POOL, v.epp(failureMode="open"), "must be one of 'FailOpen', 'FailClose'"),
        (
            v.POOL,
            v.epp(replicas=2, autoscaling={"enabled": True}, leaderElection=True),
            "leaderElection=false",
        ),
        (
            v.POOL,
            v.epp(leaderElection=False, autoscaling={"enabled": True, "minReplicas": 9}),
            "minReplicas is more than maxReplicas",
        ),
        (
            v.POOL,
            v.epp(replicas=2, podDisruptionBudget={"enabled": True}),
            "only the leader is ever ready",
        ),
        (
            v.CASES["certificate"],
            v.epp(tls={"secretName": "mine"}),
            "both secretName and certManager.enabled: keep one",
        ),
        (v.POOL, v.epp(tls={"certManager": {"enabled": True}}), "issuerRef.name is needed"),
        (v.POOL, v.epp(kvEvents={"enabled": True}), "kvEvents are of tokens: set"),
        (v.POOL, v.epp(tokenizer={"path": "/m"}), "tokenizer.modelName is needed"),
        (v.merged(v.POOL, v.TOKENS), v.CUSTOM, "write token-producer"),
        (v.POOL, v.epp(sidecar={"enabled": True}), "needs proxyType=envoy, or a container"),
        (v.POOL, v.epp(sidecar={"enabled": True, "name": "x"}), "a container of your own"),
        (v.POOL, v.epp(sidecar={"enabled": True, "proxyType": "nginx"}), "this chart knows envoy"),
        (
            v.CASES["standalone"],
            v.epp(endpointsServer={"endpointSelector": "app in (a, b)"}),
            "write labels and values as app=vllm,role=decode",
        ),
        (v.POOL, v.epp(tracing={"enabled": True}), "leave it false"),
        (v.POOL, v.epp(latencyPredictor={"enabled": True}), "leave it false"),
        (v.POOL, v.epp(metricsDataSource={"scheme": "https"}), "http://POD:PORT/metrics only"),
        (v.POOL, GRPC, "set it to http"),
        (v.POOL, {"inferencePool": {"parser": "vllmgrpc-parser"}}, "leave it empty"),
        (
            v.POOL,
            {"inferencePool": {"apiVersion": "inference.networking.x-k8s.io/v1alpha2"}},
            "upgrade the CRDs",
        ),
        (v.POOL, {"provider": {"name": "traefik"}}, "must be one of 'gke', 'istio'"),
        (v.POOL, {"inferenceObjectives": [{"name": "a"}]}, "missing property 'priority'"),
        (v.POOL, {"httpRoute": {"create": True}}, "additional properties 'httpRoute' not allowed"),
    ],
)
def test_bad_values_are_refused(base, values, words):
    things, reason = refused_or_rendered("warmpick", v.merged(base, values))
    assert things == []
    assert words in reason
