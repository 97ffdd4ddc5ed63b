"""Facts: how manifests of others start llm-d-router's endpoint picker.

From the charts of llm-d-router 0.10 (`llm-d-router-gateway`, `llm-d-router-standalone`), its
development environment, the chart of GIE 1.5, KServe 0.17 to 0.20's LLMInferenceService, GIE's
conformance suite 1.5 and 1.6, and prime-rl; with configurations of three guides. `$FILES` stands
for the root of a container's files.
"""

from typing import Any, NamedTuple

from tests.llm_d_router_configs import (
    CHART_PLUGINS,
    CONFORMANCE_PLUGINS,
    DISAGGREGATED,
    ENDPOINTS,
    FLOW_CONTROL,
    KSERVE_PLUGINS,
    OPTIMIZED_BASELINE,
    PAYLOAD_AGNOSTIC,
    PREDICTED,
    PRIME_RL_PLUGINS,
    SGLANG_PLUGINS,
)

NAMESPACE = "inference"
POD = "chat-epp-7d9f8b6c5-x2x4z"
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
READ = ["get", "watch", "list"]
GATEWAY, LLM_D = "inference.networking.k8s.io", "llm-d.ai"
LEGACY = "inference.networking.x-k8s.io"


def reads(group: str, *resources: str) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": list(resources), "verbs": READ}


PODS = [reads("", "pods")]
OBJECTS = [
    reads(LEGACY, "inferenceobjectives", "inferencemodelrewrites"),
    reads(LLM_D, "inferenceobjectives", "inferencemodelrewrites"),
    reads(GATEWAY, "inferencepools"),
]
ELECTION = [
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": [*READ, "create", "update", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
]
REVIEWS = [
    {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["tokenreviews"],
        "verbs": ["create"],
    },
    {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["subjectaccessreviews"],
        "verbs": ["create"],
    },
]
CHART_REVIEWS = [*REVIEWS, {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
KSERVE = [
    *PODS,
    reads(GATEWAY, "inferencepools", "inferenceobjectives", "inferencemodels"),
    reads(LEGACY, "inferencepools", "inferenceobjectives", "inferencemodels"),
    reads(LEGACY, "inferencemodelrewrites", "inferencepoolimports"),
    reads(LLM_D, "inferenceobjectives", "inferencemodelrewrites"),
    reads("discovery.k8s.io", "endpointslices"),
    ELECTION[0],
]


class Deployment(NamedTuple):
    """Arguments, variables and files of the container, rights of its account, and its probes.

    `cluster_rules` hold everywhere, `rules` in its namespace. `probes` are the services of the
    liveness and the readiness probe. `pool`: whether it follows an InferencePool. `said` are the
    flags and variables that a line at the start is about. With `tls` there is a certificate.
    """

    args: list[str]
    rules: list[dict[str, Any]]
    cluster_rules: list[dict[str, Any]] = []
    files: dict[str, str] = {}
    env: dict[str, str] = {"NAMESPACE": NAMESPACE, "POD_NAME": POD}
    probes: tuple[str, str] = ("inference-extension", "inference-extension")
    pool: bool = True
    said: tuple[str, ...] = ()
    tls: bool = False


OF_A_POOL = ["--pool-name", "chat", "--pool-namespace", NAMESPACE]
CHART = ["--zap-encoder", "json", "--config-file", "$FILES/config/default-plugins.yaml"]
CHART_FILES = {"config/default-plugins.yaml": CHART_PLUGINS}
IN_THE_CHART = [*OF_A_POOL, "--pool-group", GATEWAY, *CHART]
SELECTED = ["--endpoint-selector", "app=vllm-qwen3-32b", "--endpoint-target-ports", "8000"]
HEALTH = ["--grpc-health-port", "9003"]
OFF = "--tracing=false"
TRACING = {
    "OTEL_SERVICE_NAME": "llm-d-router/epp",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME": "node",
    "OTEL_RESOURCE_ATTRIBUTES_POD_NAME": POD,
    "OTEL_RESOURCE_ATTRIBUTES": "k8s.namespace.name=inference",
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.1",
}
PREDICTOR = {
    "PREDICTION_SERVER_URL": "http://localhost:8001",
    "TRAINING_SERVER_URL": "http://localhost:8000",
    "LATENCY_MAX_SAMPLE_SIZE": "10000",
    "LATENCY_MAX_CONCURRENT_DISPATCHES": "36",
    "LATENCY_COALESCE_WINDOW_MS": "1",
}
POD_ENV = {"NAMESPACE": NAMESPACE, "POD_NAME": POD}
KSERVE_ARGS = [
    *("--pool-name", "chat", "--pool-namespace", NAMESPACE, "--zap-encoder", "json"),
    *("--grpc-port", "9002", "--grpc-health-port", "9003"),
]
KSERVE_TLS = [
    *("--enable-cert-reload=true", "--secure-serving=true"),
    *("--model-server-metrics-scheme=https", "--cert-path=$FILES/tls"),
]
KSERVE_ENV = {"SSL_CERT_DIR": "/var/run/kserve/tls:/etc/pki/tls/certs"}
TWO = ("liveness", "readiness")
EXT_PROC_PROBES = (EXT_PROC, EXT_PROC)


def gateway(*flags: str, **more: Any) -> Deployment:
    """What chart `llm-d-router-gateway` renders, and the standalone one with a pool."""
    given = {"rules": [*PODS, *OBJECTS], "files": CHART_FILES} | more
    return Deployment([*IN_THE_CHART, *HEALTH, *flags], **given)


DEPLOYMENTS = {
    "gateway chart": gateway(OFF),
    "gateway chart, two replicas": gateway(
        "--ha-enable-leader-election", OFF, rules=[*PODS, *OBJECTS, *ELECTION], probes=TWO
    ),
    "gateway chart, monitored": gateway(OFF, cluster_rules=CHART_REVIEWS),
    "gateway chart, metrics for all": gateway(OFF, "--metrics-endpoint-auth=false"),
    "gateway chart, traced": gateway("--tracing=true", env=POD_ENV | TRACING),
    "gateway chart, with flags": gateway(
        *("--enable-pprof=false", "--v=4", "--grpc-max-recv-msg-size=16MiB", OFF),
        *("--emit-endpoint-scores=true", "--refresh-metrics-interval=50ms"),
    ),
    "gateway chart, experimental": gateway(
        "--allow-experimental-plugins=true", OFF, said=("--allow-experimental-plugins",)
    ),
    "gateway chart, SGLang": gateway(OFF, files={"config/default-plugins.yaml": SGLANG_PLUGINS}),
    "gateway chart, payload-agnostic": gateway(
        OFF, files={"config/default-plugins.yaml": PAYLOAD_AGNOSTIC}
    ),
    "gateway chart, latency predictor": gateway(
        OFF,
        files={"config/default-plugins.yaml": PREDICTED},
        env=POD_ENV | PREDICTOR,
        said=("LATENCY_COALESCE_WINDOW_MS", "TRAINING_SERVER_URL", "PREDICTION_SERVER_URL"),
    ),
    "guide: optimized baseline": gateway(
        OFF, files={"config/default-plugins.yaml": OPTIMIZED_BASELINE}
    ),
    "guide: disaggregation": gateway(OFF, files={"config/default-plugins.yaml": DISAGGREGATED}),
    "guide: flow control": gateway(
        OFF, "--v=3", files={"config/default-plugins.yaml": FLOW_CONTROL}
    ),
    "standalone chart without a pool": Deployment(
        [*SELECTED, *CHART, *HEALTH, OFF], PODS, files=CHART_FILES, pool=False
    ),
    "standalone chart, agentgateway": Deployment(
        [*SELECTED, *CHART, *HEALTH, "--secure-serving=false", OFF],
        PODS,
        files=CHART_FILES,
        pool=False,
    ),
    "standalone chart, proxies of their own": gateway("--grpc-health-port", "9013", OFF),
    "development environment": Deployment(
        [
            *(*OF_A_POOL, "--v", "4", "--zap-encoder", "json", "--grpc-port", "9002", *HEALTH),
            *("--config-file", "$FILES/etc/epp/epp-config.yaml"),
            *("--allow-experimental-plugins=true", "--metrics-endpoint-auth=true"),
            "--ha-enable-leader-election=false",
        ],
        [*PODS, *OBJECTS, reads(LEGACY, "inferencepools"), *ELECTION],
        files={"etc/epp/epp-config.yaml": CHART_PLUGINS},
        env={},
        probes=EXT_PROC_PROBES,
        said=("--allow-experimental-plugins",),
    ),
    "GIE 1.5 chart": Deployment(
        [*IN_THE_CHART, "--tracing=false"], [*PODS, *OBJECTS], CHART_REVIEWS, CHART_FILES
    ),
    "GIE 1.5 chart, camel case": Deployment(
        ["-poolName", "chat", "-poolNamespace", NAMESPACE, "-v", "4", "--zap-encoder", "json"],
        [*PODS, *OBJECTS],
    ),
    "conformance suite 1.5": Deployment(
        [
            *(*OF_A_POOL, "--v", "4", "--zap-encoder", "json", "--grpc-port", "9002", *HEALTH),
            *("--config-file", "$FILES/config/conformance-plugins.yaml"),
        ],
        [
            reads(LEGACY, "inferenceobjectives", "inferencemodelrewrites", "inferencepools"),
            *(OBJECTS[-1], *PODS),
        ],
        files={"config/conformance-plugins.yaml": CONFORMANCE_PLUGINS},
        env={},
    ),
    "conformance suite 1.6": Deployment(
        [*OF_A_POOL, "--zap-encoder", "json", "--grpc-port", "9002", *HEALTH],
        [OBJECTS[-1], *PODS],
        env={},
    ),
    "KServe 0.17": Deployment(
        [
            *(*KSERVE_ARGS, "--kv-cache-usage-percentage-metric", "vllm:kv_cache_usage_perc"),
            *("--config-text", CHART_PLUGINS),
        ],
        KSERVE,
        REVIEWS,
        env={},
        probes=TWO,
        said=("--kv-cache-usage-percentage-metric",),
    ),
    "KServe 0.20": Deployment(
        [*KSERVE_ARGS, *KSERVE_TLS, "--config-text", KSERVE_PLUGINS],
        KSERVE,
        REVIEWS,
        env=KSERVE_ENV,
        probes=TWO,
        said=("--enable-cert-reload",),
        tls=True,
    ),
    "KServe 0.20 without TLS, two replicas": Deployment(
        [
            *(*KSERVE_ARGS, "", "", "", "", "--ha-enable-leader-election"),
            *("--config-text", CHART_PLUGINS),
        ],
        KSERVE,
        REVIEWS,
        env=KSERVE_ENV,
        probes=TWO,
    ),
    "prime-rl": Deployment(
        [
            *("--pool-name", "prime-rl", "--pool-namespace", "slurm"),
            *("--config-file", "$FILES/llmd/epp.yaml", "--grpc-port", "9002"),
            *("--grpc-health-port", "9013", "--metrics-port", "9090", "--secure-serving=false"),
            *("--metrics-endpoint-auth=false", OFF),
        ],
        [],
        files={"llmd/epp.yaml": PRIME_RL_PLUGINS, "llmd/endpoints.yaml": ENDPOINTS},
        env={},
        pool=False,
        said=("--pool-namespace",),
    ),
}
