"""Values to render the warmpick chart with."""

from functools import reduce

PROVIDERS = (
    "gke",
    "istio",
    "envoy-gateway",
    "envoy-ai-gateway",
    "kgateway",
    "agentgateway",
    "nginx",
    "none",
)
POOL = {"inferencePool": {"modelServers": {"matchLabels": {"app": "vllm"}}}}
OLD_POOL = {"inferencePool": {"apiVersion": "inference.networking.x-k8s.io/v1alpha2"}}
SELECTOR = {
    "inferenceExtension": {
        "endpointsServer": {"createInferencePool": False, "endpointSelector": "app=vllm,tier=gpu"}
    }
}


def both(one, other):
    """Merge values as Helm does: maps deep, everything else by the later."""
    merged = dict(one)
    for key, value in other.items():
        held = merged.get(key)
        deep = isinstance(held, dict) and isinstance(value, dict)
        merged[key] = both(held, value) if deep else value
    return merged


def merged(*values):
    return reduce(both, values, {})


def epp(**values):
    return {"inferenceExtension": values}


def provider(name):
    return {"provider": {"name": name}}


ACTIVE = epp(
    replicas=2,
    leaderElection=False,
    podDisruptionBudget={"enabled": True},
    autoscaling={"enabled": True, "minReplicas": 2, "maxReplicas": 5},
)
EXCHANGE = epp(replicas=3, exchange={"enabled": True})
REDIS = epp(
    exchange={"redis": {"url": "rediss://pickers@redis:6380/1", "passwordSecretName": "redis"}}
)
ENVOY = epp(sidecar={"enabled": True, "proxyType": "envoy"})
SCRAPED = epp(monitoring={"prometheus": {"enabled": True, "extraLabels": {"release": "prom"}}})
ALERTS = epp(monitoring={"alerts": {"enabled": True}})
DASHBOARDS = epp(monitoring={"dashboards": {"enabled": True}})
OPEN = epp(monitoring={"prometheus": {"auth": {"enabled": False}}})
FENCED = epp(networkPolicy={"enabled": True})
ROUTED = {"experimentalHttpRoute": {"enabled": True}}
TOKENS = epp(
    tokenizer={"path": "/models/llama", "modelName": "llama"},
    kvEvents={"enabled": True},
    volumes=[{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    volumeMounts=[{"name": "models", "mountPath": "/models", "readOnly": True}],
)
RECORDED = epp(recording={"enabled": True, "claimName": "recordings"})
CUSTOM = epp(
    pluginsConfigFile="mine.yaml",
    pluginsCustomConfig={
        "mine.yaml": """
            apiVersion: inference.networking.x-k8s.io/v1alpha1
            kind: EndpointPickerConfig
            plugins:
            - type: prefix-cache-scorer
            - type: max-score-picker
            schedulingProfiles:
            - name: default
              plugins:
              - {pluginRef: prefix-cache-scorer, weight: 3}
        """.replace("\n            ", "\n")
    },
)
TUNED = epp(
    image={"registry": "registry.example:5000", "repository": "team/epp", "tag": "v1"},
    imagePullSecrets=[{"name": "pull"}],
    env=[{"name": "ZONE", "value": "a"}],
    affinity={"podAntiAffinity": {}},
    tolerations=[{"key": "infra", "operator": "Exists"}],
    nodeSelector={"pool": "infra"},
    topologySpreadConstraints=[
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    priorityClassName="high",
    podAnnotations={"a/b": "c"},
    podLabels={"team": "x"},
    serviceAnnotations={"cloud/neg": "{}"},
    serviceAccount={"annotations": {"iam": "x"}},
    extraContainerPorts=[{"name": "debug", "containerPort": 6060}],
    extraServicePorts=[{"name": "debug", "port": 6060, "targetPort": "debug"}],
    strategy={"type": "Recreate"},
    flags={"max-body-bytes": 67108864, "debug-headers": True, "v": 5, "zap-encoder": "console"},
)

CASES = {
    "defaults": POOL,
    "leader": merged(POOL, epp(replicas=3), FENCED),
    "active": merged(POOL, ACTIVE),
    "exchange": merged(POOL, EXCHANGE, FENCED),
    "exchange-over-redis": merged(POOL, EXCHANGE, REDIS, FENCED),
    "selector": SELECTOR,
    "selector-leader": merged(SELECTOR, epp(replicas=2), OPEN),
    "standalone": merged(SELECTOR, ENVOY, FENCED, SCRAPED),
    "pool-beside-envoy": merged(POOL, ENVOY, epp(flags={"secure-serving": False})),
    "pool-of-ones-own": {"inferencePool": {"create": False}},
    "route": merged(
        POOL,
        {
            "experimentalHttpRoute": {
                "enabled": True,
                "inferenceGatewayNamespace": "gateways",
                "baseModel": "Qwen/Qwen3-32B",
                "headerMatches": {"x-team": "a"},
            }
        },
    ),
    "objectives": merged(
        POOL,
        {
            "inferenceObjectives": [
                {"name": "high", "priority": 5},
                {"name": "batch", "priority": -1},
            ]
        },
    ),
    "v1-objectives": merged(
        POOL,
        {
            "inferenceObjectives": [{"name": "high", "priority": 5}],
            "inferenceObjectiveApiVersion": "llm-d.ai/v1",
        },
    ),
    "v1alpha2": merged(POOL, OLD_POOL, {"inferenceObjectives": [{"name": "a", "priority": 1}]}),
    "upstreams-policy": merged(
        POOL,
        epp(policy="llm-d", metricsDataSource={"path": "/stats"}),
        {"inferencePool": {"modelServerType": "sglang"}},
    ),
    "parsed": merged(POOL, {"inferencePool": {"parser": "openai-parser"}}),
    "old-objectives": merged(
        POOL,
        {
            "inferenceObjectives": [{"name": "high", "priority": 5}],
            "inferenceObjectiveApiVersion": "inference.networking.x-k8s.io/v1alpha2",
        },
    ),
    "eight-ports": merged(
        POOL, {"inferencePool": {"targetPorts": [{"number": 8000 + n} for n in range(8)]}}, FENCED
    ),
    "secret": merged(POOL, epp(tls={"secretName": "mine"})),
    "certificate": merged(
        POOL, epp(tls={"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}})
    ),
    "tokens": merged(POOL, TOKENS, FENCED),
    "watched": merged(POOL, SCRAPED, ALERTS, DASHBOARDS),
    "watched-on-gke": merged(POOL, provider("gke"), ALERTS),
    "recorded": merged(POOL, epp(recording={"enabled": True, "maxBytes": "500M"})),
    "recorded-on-a-claim": merged(POOL, RECORDED),
    "custom": merged(POOL, CUSTOM),
    "tuned": merged(POOL, TUNED),
    "sidecar": merged(
        POOL,
        epp(
            sidecar={
                "enabled": True,
                "name": "logger",
                "image": "registry.example/logger:1",
                "command": "/bin/log",
                "args": ["-v"],
                "env": [{"name": "A", "value": "b"}],
                "ports": [{"name": "log", "containerPort": 5000}],
                "volumeMounts": [{"name": "log", "mountPath": "/etc/log"}],
                "volumes": [{"name": "log", "configMap": {"name": "log"}}],
                "configMap": {"name": "log", "data": {"log.conf": "all"}},
            }
        ),
    ),
} | {f"on-{name}": merged(POOL, provider(name), ROUTED, SCRAPED) for name in PROVIDERS}
