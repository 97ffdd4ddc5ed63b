"""What the chart `warmpick` does not take, and that it says which value and what to do."""

import pytest

from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import refused_or_rendered
from tests.charts.values import both


def ports(given):
    return v.merged(v.SELECTOR, v.epp(endpointsServer={"targetPorts": given}))


def pool_ports(*numbers):
    return {"inferencePool": {"targetPorts": [{"number": number} for number in numbers]}}


@pytest.mark.parametrize(
    ("base", "values", "words"),
    [
        ({}, {}, "modelServers.matchLabels is required"),
        (v.FENCED, {"inferencePool": {"create": False}}, "modelServers.matchLabels is required"),
        (
            v.SELECTOR,
            v.epp(endpointsServer={"endpointSelector": ""}),
            "endpointSelector is required",
        ),
        (v.SELECTOR, v.ROUTED, "experimentalHttpRoute.enabled requires an InferencePool"),
        (
            v.SELECTOR,
            {"inferenceObjectives": [{"name": "a", "priority": 1}]},
            "inferenceObjectives requires an InferencePool",
        ),
        (v.SELECTOR, v.provider("gke"), "provider.name=gke requires an InferencePool"),
        (v.POOL, pool_ports(*range(8000, 8009)), "at '/inferencePool/targetPorts': maxItems"),
        (v.POOL, pool_ports(), "at '/inferencePool/targetPorts': minItems"),
        (v.POOL, pool_ports(0), "at '/inferencePool/targetPorts/0/number': minimum"),
        (v.POOL, pool_ports(8000, 8000), "inferencePool.targetPorts lists a port more than once"),
        ({}, ports(list(range(8000, 8009))), "endpointsServer.targetPorts lists 9 ports, but"),
        ({}, ports("8000,http"), "endpointsServer.targetPorts must list ports from 1 to 65535"),
        (v.POOL, v.epp(pluginsConfigFile="mine.yaml"), '"mine.yaml", but there is no such file'),
        (
            v.POOL,
            v.epp(exchange={"redis": {"url": "redis://pickers:secret@redis:6379/0"}}),
            "at '/inferenceExtension/exchange/redis/url'",
        ),
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
            "minReplicas is greater than maxReplicas",
        ),
        (
            v.POOL,
            v.epp(replicas=2, podDisruptionBudget={"enabled": True}),
            "only the leader is ever ready",
        ),
        (
            v.CASES["certificate"],
            v.epp(tls={"secretName": "mine"}),
            "tls.secretName and tls.certManager.enabled are both set: keep only one",
        ),
        (v.POOL, v.epp(tls={"certManager": {"enabled": True}}), "issuerRef.name is required"),
        (v.POOL, v.epp(kvEvents={"enabled": True}), "kvEvents requires a tokenizer: set"),
        (v.POOL, v.epp(recording={"maxBytes": "much"}), "does not match pattern"),
        (v.POOL, v.epp(tokenizer={"path": "/m"}), "tokenizer.modelName is required"),
        (v.merged(v.POOL, v.TOKENS), v.CUSTOM, "write token-producer"),
        (
            v.POOL,
            v.epp(sidecar={"enabled": True}),
            "set inferenceExtension.sidecar.proxyType=envoy, or",
        ),
        (v.POOL, v.epp(sidecar={"enabled": True, "name": "x"}), "a container of your own"),
        (
            v.POOL,
            v.epp(sidecar={"enabled": True, "proxyType": "nginx"}),
            "chart supports only envoy",
        ),
        (
            v.CASES["standalone"],
            v.epp(sidecar={"startupProbe": {"httpGet": {"path": "/ready", "port": 19001}}}),
            "sidecar.startupProbe asks the proxy by httpGet, but the picker starts only when",
        ),
        (
            v.CASES["standalone"],
            v.epp(endpointsServer={"endpointSelector": "app in (a, b)"}),
            "write label=value pairs, such as app=vllm,role=decode",
        ),
        (
            v.merged(v.POOL, pool_ports(8000, 8001)),
            {"inferencePool": {"apiVersion": "inference.networking.x-k8s.io/v1alpha2"}},
            "which allows only one port",
        ),
        (v.POOL, {"provider": {"name": "traefik"}}, "must be one of 'gke', 'istio'"),
        (v.POOL, {"inferenceObjectives": [{"name": "a"}]}, "missing property 'priority'"),
        (v.POOL, {"httpRoute": {"enabled": True}}, "additional properties 'enabled' not allowed"),
    ],
)
def test_bad_values_are_refused(base, values, words):
    things, reason = refused_or_rendered("warmpick", v.merged(base, values))
    assert things == []
    assert words in reason


def proxy(**values):
    return r.router(proxy=values)


def scaling(**values):
    return r.epp(autoscaling={"enabled": True, **values})


METRICS = [{"name": "http-metrics", "port": 9090}]


@pytest.mark.parametrize(
    ("base", "values", "words"),
    [
        ({}, r.router(modelServers={}), "router.modelServers.matchLabels is required"),
        (
            {},
            r.router(inferencePool={"create": False}),
            "router.modelServers.matchLabels is required",
        ),
        (r.STANDALONE, proxy(proxyType="agentgateway"), 'router.proxy.proxyType is "agentgateway"'),
        (r.STANDALONE, proxy(proxyType="nginx"), "router.proxy.enabled=false"),
        (r.STANDALONE, proxy(mode="daemon"), "at '/router/proxy/mode'"),
        (r.STANDALONE, proxy(failOpen="yes"), "at '/router/proxy/failOpen'"),
        (r.STANDALONE, proxy(priorityRouting={"enabled": True}), "set router.proxy.mode=service"),
        (r.PRIORITY, scaling(), "router.proxy.priorityRouting makes a StatefulSet"),
        (r.PREFERRED, scaling(), "provider.gke.preferredBackends makes a StatefulSet"),
        (
            r.PRIORITY,
            r.epp(flags={"ha-enable-leader-election": True}),
            "router.proxy.priorityRouting makes a StatefulSet, whose roll-out waits",
        ),
        (
            r.STANDALONE,
            r.epp(flags={"health-checking": False}),
            "router.epp.flags.health-checking is false",
        ),
        (r.STANDALONE, proxy(autoscaling={"enabled": True}), "set router.proxy.mode=service"),
        (
            r.SERVICE,
            r.epp(autoscaling={"enabled": True, "minReplicas": 0}),
            "is 0, but must be at least 1",
        ),
        (r.POOL, scaling(minReplicas=6), "router.epp.autoscaling.minReplicas is greater than"),
        (r.POOL, scaling(targetCPUUtilizationPercentage=101), "is 101, but must be from 1 to 100"),
        (r.POOL, scaling(targetMemoryUtilizationPercentage=0), "is 0, but must be from 1 to 100"),
        (
            both(r.POOL, scaling()),
            r.epp(flags={"ha-enable-leader-election": "True"}),
            "leave out router.epp.flags.ha-enable-leader-election",
        ),
        (r.POOL, {"provider": {"name": "traefik"}}, "must be one of 'gke', 'istio'"),
        (
            r.POOL,
            r.router(extraServicePorts=METRICS),
            'router.extraServicePorts lists "http-metrics", which the Service always has',
        ),
        (
            r.POOL,
            r.epp(
                pluginsConfigFile="m.yaml",
                pluginsConfig={"a": 1},
                pluginsCustomConfig={"m.yaml": ""},
            ),
            'router.epp.pluginsCustomConfig both define "m.yaml"',
        ),
        (r.POOL, r.epp(pluginsConfigFile="m.yaml"), 'router.epp.pluginsConfigFile is "m.yaml"'),
        (r.POOL, r.router(tokenizer={"enabled": True}), "router.tokenizer.modelName is required"),
        (r.TOKENIZER, r.router(tokenizer={"flavor": "go"}), "at '/router/tokenizer/flavor'"),
        (
            r.STANDALONE,
            {"httpRoute": {"create": True}},
            "httpRoute.create requires an InferencePool",
        ),
        (
            r.STANDALONE,
            r.router(inferenceObjectives=[{"name": "a", "priority": 1}]),
            "router.inferenceObjectives requires an InferencePool",
        ),
        (
            r.SCRAPED,
            r.router(monitoring={"provider": {"name": "datadog"}}),
            'router.monitoring.provider.name is "datadog"',
        ),
        (r.POOL, r.epp(replicas="two"), "at '/router/epp/replicas'"),
        (r.POOL, r.router(modelServers={"type": "ollama"}), "at '/router/modelServers/type'"),
    ],
)
def test_values_of_llm_d_router_that_would_mislead_are_refused(base, values, words):
    things, reason = refused_or_rendered("warmpick", both(base, values))
    assert things == []
    assert words in reason


@pytest.mark.parametrize(
    ("values", "path"),
    [
        (v.epp(replicas=None), "inferenceExtension.replicas"),
        (v.epp(tracing=None), "inferenceExtension.tracing"),
        (v.epp(image={"registry": None}), "inferenceExtension.image.registry"),
        (v.epp(clusterDomain=None), "inferenceExtension.clusterDomain"),
        (v.epp(workers=None), "inferenceExtension.workers"),
        *(
            (v.epp(sidecar={name: None}), f"inferenceExtension.sidecar.{name}")
            for name in ("replicas", "terminationGracePeriodSeconds", "healthCheckHealthyThreshold")
        ),
        (v.epp(terminationGracePeriodSeconds=None), "inferenceExtension.terminationGracePeriodSec"),
        (
            v.epp(monitoring={"prometheus": {"auth": {"enabled": None}}}),
            "inferenceExtension.monitoring.prometheus.auth.enabled",
        ),
        (v.epp(monitoring=None), "inferenceExtension.monitoring"),
        ({"inferencePool": {"create": None}}, "inferencePool.create"),
        ({"provider": None}, "provider"),
        ({"inferenceExtension": None}, "inferenceExtension"),
    ],
)
def test_null_does_not_stand_for_zero_or_off(values, path):
    things, reason = refused_or_rendered("warmpick", v.merged(v.POOL, values))
    assert (things, path in reason, "--reset-then-reuse-values" in reason) == ([], True, True)
    assert " is null: leave it out" in reason
