"""Values as users of llm-d-router's charts write them, in their words."""

from tests.charts.values import both, merged

POOL = {"router": {"modelServers": {"matchLabels": {"app": "vllm"}}}}


def router(**values):
    return {"router": values}


def at(path, value):
    """Values with one key, by its path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def epp(**values):
    return router(epp=values)


def plugins(*types, profiles=None, **more):
    """A configuration whose one profile, unless said otherwise, has every type."""
    profiles = profiles or {"default": types}
    return {
        "apiVersion": "llm-d.ai/v1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": each} if isinstance(each, str) else each for each in types],
        "schedulingProfiles": [
            {"name": name, "plugins": [{"pluginRef": each} for each in refs]}
            for name, refs in profiles.items()
        ],
        **more,
    }


HTTP = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8081}]
BASE = {
    "router": {
        "epp": {
            "replicas": 1,
            "flags": {"v": 2},
            "pluginsConfigFile": "default-plugins.yaml",
            "resources": {
                "requests": {"cpu": "4", "memory": "8Gi"},
                "limits": {"memory": "16Gi"},
            },
        },
        "inferencePool": {"failureMode": "FailOpen"},
        "modelServers": {"protocol": "http"},
        "proxy": {
            "proxyType": "envoy",
            "args": ["--service-node", "envoy-sidecar", "-c", "/etc/envoy/envoy.yaml"],
            "resources": {"requests": {"cpu": "4", "memory": "8Gi"}},
        },
        "tracing": {
            "otelExporterEndpoint": "http://localhost:4317",
            "sampling": {"sampler": "parentbased_traceidratio", "samplerArg": "0.1"},
        },
    }
}
"""What every guide's own file is laid over, for both charts."""
STANDALONE = both(POOL, router(proxy={"enabled": True}, inferencePool={"create": False}))
SERVICE = both(STANDALONE, router(proxy={"mode": "service"}))
SCRAPED = both(POOL, router(monitoring={"prometheus": {"enabled": True}}))
GMP = both(SCRAPED, router(monitoring={"provider": {"name": "gmp"}}))
TOKENIZER = both(POOL, router(tokenizer={"enabled": True, "modelName": "Qwen/Qwen3-32B"}))
TRACED = both(POOL, router(tracing={"enabled": True}))
PREDICTED = both(POOL, router(latencyPredictor={"enabled": True}))
SCALED = both(POOL, epp(autoscaling={"enabled": True}))
PRIORITY = both(SERVICE, router(proxy={"priorityRouting": {"enabled": True}}))
PREFERRED = both(
    POOL, at("provider", {"name": "gke", "gke": {"preferredBackends": {"enabled": True}}})
)
SCALED_PROXY = both(SERVICE, router(proxy={"autoscaling": {"enabled": True}}))
ISTIO = both(POOL, {"provider": {"name": "istio"}})
ROUTED = both(POOL, {"httpRoute": {"create": True}})
ENVOY_YAML = """\
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 19000}}}
static_resources:
  clusters:
  - name: ext_proc
    type: {{ include "llm-d-router.proxy.extProcClusterType" . }}
    connect_timeout: 1s
    health_checks:
    - timeout: 2s
      interval: 10s
      unhealthy_threshold: 3
      healthy_threshold: 2
      grpc_health_check: {service_name: envoy.service.ext_proc.v3.ExternalProcessor}
      {{ include "llm-d-router.proxy.envoyExtProcTLSOptions" . | indent 6 | trim }}
    {{- include "llm-d-router.proxy.envoyExtProcTransportSocket" . | nindent 4 }}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: ext_proc
      endpoints:
      - lb_endpoints:
        - endpoint:
            address:
              socket_address:
                address: {{ include "llm-d-router.proxy.extProcHost" . }}
                port_value: 9002
"""

CASES = {
    "gateway": POOL,
    "gateway-istio": merged(BASE, ISTIO, {"httpRoute": {"create": True}}),
    "gateway-gke": merged(
        POOL,
        {"provider": {"name": "gke"}},
        router(monitoring={"prometheus": {"enabled": True}}),
    ),
    "gateway-gke-grpc": merged(
        POOL,
        {"provider": {"name": "gke"}},
        router(modelServers={"protocol": "grpc"}, epp={"grpcHealthPort": 9103}),
    ),
    "leader": both(POOL, epp(replicas=3)),
    "active-active": both(POOL, epp(replicas=2, flags={"ha-enable-leader-election": False})),
    "scaled": SCALED,
    "scraped": SCRAPED,
    "gmp": GMP,
    "open-metrics": both(SCRAPED, router(monitoring={"prometheus": {"auth": {"enabled": False}}})),
    "standalone": STANDALONE,
    "standalone-guide": merged(BASE, POOL, router(extraServicePorts=HTTP)),
    "service": SERVICE,
    "service-scaled": SCALED_PROXY,
    "priority": PRIORITY,
    "preferred": PREFERRED,
    "payload-agnostic": both(STANDALONE, epp(pluginsConfigFile="payload-agnostic.yaml")),
    "least-ttft": both(STANDALONE, epp(pluginsConfigFile="least-ttft.yaml")),
    "structured": both(
        POOL,
        epp(
            pluginsConfigFile="mine.yaml",
            pluginsConfig=plugins("queue-scorer", featureGates=["flowControl=false"]),
        ),
    ),
    "objectives": both(POOL, router(inferenceObjectives=[{"name": "high", "priority": 5}])),
    "ranks": both(POOL, router(modelServers={"targetPorts": [{"number": 8000}, {"number": 8001}]})),
    "sglang": both(POOL, router(modelServers={"type": "sglang"})),
    "tokenizer": TOKENIZER,
    "predicted": PREDICTED,
    "traced": TRACED,
    "plaintext": both(SERVICE, epp(flags={"secure-serving": False})),
    "own-envoy": both(
        STANDALONE, router(proxy={"configMap": {"data": {"envoy.yaml": ENVOY_YAML}}})
    ),
    "renamed-envoy": both(
        STANDALONE,
        router(
            proxy={
                "configMap": {"name": "hub-envoy"},
                "volumes": [{"name": "config", "configMap": {"name": "hub-envoy"}}],
            }
        ),
    ),
    "guards": both(
        STANDALONE,
        router(
            imagePullSecrets=[{"name": "pull"}],
            epp={"podSecurityContext": {"runAsUser": 65532}, "podAnnotations": {"a/b": "c"}},
        ),
    ),
}

# Every documented key of `router`, with a value that is not its default and the values under which
# it means something.
KEYS = {
    "extraServicePorts": ([{"name": "debug", "port": 6060}], POOL),
    "clusterDomain": ("cluster.example", SERVICE),
    "imagePullSecrets": ([{"name": "pull"}], POOL),
    "metricsPort": (9190, POOL),
    "epp.replicas": (2, POOL),
    "epp.image.registry": ("registry.example", POOL),
    "epp.image.repository": ("team/epp", POOL),
    "epp.image.tag": (1.5, POOL),
    "epp.image.pullPolicy": ("Always", POOL),
    "epp.extProcPort": (9012, POOL),
    "epp.grpcHealthPort": (9103, POOL),
    "epp.parsers": (["openai-parser"], POOL),
    "epp.metricsDataSource.scheme": ("https", POOL),
    "epp.metricsDataSource.path": ("/stats", POOL),
    "epp.metricsDataSource.insecureSkipVerify": (False, POOL),
    "epp.flags": ({"v": 4}, POOL),
    "epp.env": ([{"name": "A", "value": "b"}], POOL),
    "epp.extraContainerPorts": ([{"name": "debug", "containerPort": 6060}], POOL),
    "epp.volumes": ([{"name": "models", "emptyDir": {}}], POOL),
    "epp.volumeMounts": ([{"name": "tmp", "mountPath": "/models"}], POOL),
    "epp.affinity": ({"podAntiAffinity": {}}, POOL),
    "epp.tolerations": ([{"key": "gpu", "operator": "Exists"}], POOL),
    "epp.podAnnotations": ({"prometheus.io/scrape": "true"}, POOL),
    "epp.pluginsConfigFile": ("payload-agnostic.yaml", POOL),
    "epp.pluginsConfig": (plugins("queue-scorer"), POOL),
    "epp.pluginsCustomConfig": ({"mine.yaml": "a: b\n"}, POOL),
    "epp.podSecurityContext": ({"runAsUser": 1000}, POOL),
    "epp.securityContext": ({"runAsGroup": 1000}, POOL),
    "epp.deploymentStrategy": ({"type": "RollingUpdate"}, POOL),
    "epp.terminationGracePeriodSeconds": (60, POOL),
    "epp.resources": ({"requests": {"cpu": "8", "memory": "8Gi"}}, POOL),
    "epp.autoscaling.enabled": (True, POOL),
    "epp.autoscaling.minReplicas": (2, SCALED),
    "epp.autoscaling.maxReplicas": (9, SCALED),
    "epp.autoscaling.targetCPUUtilizationPercentage": (60, SCALED),
    "epp.autoscaling.targetMemoryUtilizationPercentage": (75, SCALED),
    "epp.autoscaling.metrics": (
        [{"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "Value"}}}],
        SCALED,
    ),
    "epp.autoscaling.behavior": ({"scaleDown": {"stabilizationWindowSeconds": 9}}, SCALED),
    "proxy.enabled": (True, POOL),
    "proxy.proxyType": ("agentgateway", STANDALONE),
    "proxy.mode": ("service", STANDALONE),
    "proxy.replicas": (3, SERVICE),
    "proxy.failOpen": (False, STANDALONE),
    "proxy.name": ("front", STANDALONE),
    "proxy.image": ("registry.example/envoy:v1.33.2", STANDALONE),
    "proxy.imagePullPolicy": ("Always", STANDALONE),
    "proxy.command": ("/usr/bin/envoy", STANDALONE),
    "proxy.args": (["-c", "/etc/envoy/envoy.yaml"], STANDALONE),
    "proxy.env": ([{"name": "A", "value": "b"}], STANDALONE),
    "proxy.ports": ([{"name": "http-8081", "containerPort": 8081}], STANDALONE),
    "proxy.livenessProbe": ({"tcpSocket": {"port": 8081}}, STANDALONE),
    "proxy.readinessProbe": ({"tcpSocket": {"port": 8081}}, STANDALONE),
    "proxy.startupProbe": ({"tcpSocket": {"port": 8081}}, STANDALONE),
    "proxy.securityContext": ({"runAsUser": 1000}, STANDALONE),
    "proxy.resources": ({"requests": {"cpu": "4", "memory": "8Gi"}}, STANDALONE),
    "proxy.volumeMounts": ([{"name": "config", "mountPath": "/etc/e"}], STANDALONE),
    "proxy.volumes": ([{"name": "certs", "emptyDir": {}}], STANDALONE),
    "proxy.configMap.name": ("hub-envoy", STANDALONE),
    "proxy.configMap.data": ({"more.yaml": "a: b"}, STANDALONE),
    "proxy.configMapData": ({"more.yaml": "a: b"}, STANDALONE),
    "proxy.terminationGracePeriodSeconds": (30, SERVICE),
    "proxy.priorityRouting.enabled": (True, SERVICE),
    "proxy.priorityRouting.primaryReplicas": (2, PRIORITY),
    "proxy.priorityRouting.standbyReplicas": (2, PRIORITY),
    "proxy.priorityRouting.healthyPanicThreshold": (50, PRIORITY),
    "proxy.priorityRouting.dnsRefreshRate": ("1s", PRIORITY),
    "proxy.priorityRouting.connectTimeout": ("1s", PRIORITY),
    "proxy.healthCheckInterval": ("10s", STANDALONE),
    "proxy.healthCheckTimeout": ("2s", STANDALONE),
    "proxy.healthCheckUnhealthyThreshold": (5, STANDALONE),
    "proxy.healthCheckHealthyThreshold": (2, STANDALONE),
    "proxy.autoscaling.enabled": (True, SERVICE),
    "proxy.autoscaling.minReplicas": (2, SCALED_PROXY),
    "proxy.autoscaling.maxReplicas": (9, SCALED_PROXY),
    "proxy.autoscaling.targetCPUUtilizationPercentage": (60, SCALED_PROXY),
    "proxy.autoscaling.targetMemoryUtilizationPercentage": (75, SCALED_PROXY),
    "proxy.autoscaling.metrics": (
        [{"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "Value"}}}],
        SCALED_PROXY,
    ),
    "proxy.autoscaling.behavior": (
        {"scaleDown": {"stabilizationWindowSeconds": 9}},
        SCALED_PROXY,
    ),
    "proxy.presets": ({"envoy": {"image": "registry.example/envoy:v1"}}, STANDALONE),
    "tokenizer.enabled": (True, both(POOL, router(tokenizer={"modelName": "m"}))),
    "tokenizer.flavor": ("rust", TOKENIZER),
    "tokenizer.modelName": ("other", TOKENIZER),
    "tokenizer.image.registry": ("registry.example", TOKENIZER),
    "tokenizer.image.repository": ("team/vllm", TOKENIZER),
    "tokenizer.image.tag": ("v1", TOKENIZER),
    "tokenizer.image.pullPolicy": ("Always", TOKENIZER),
    "tokenizer.port": (8100, TOKENIZER),
    "tokenizer.command": (["python"], TOKENIZER),
    "tokenizer.args": (["m"], TOKENIZER),
    "tokenizer.extraArgs": (["--trust-remote-code"], TOKENIZER),
    "tokenizer.initContainers": ([{"name": "fetch", "image": "curl"}], TOKENIZER),
    "tokenizer.volumes": ([{"name": "models", "emptyDir": {}}], TOKENIZER),
    "tokenizer.env": ([{"name": "HF_HOME", "value": "/models"}], TOKENIZER),
    "tokenizer.resources": ({"requests": {"cpu": "2", "memory": "1Gi"}}, TOKENIZER),
    "tokenizer.volumeMounts": ([{"name": "model-cache", "mountPath": "/models"}], TOKENIZER),
    "tokenizer.readinessProbe": ({"tcpSocket": {"port": 8000}}, TOKENIZER),
    "monitoring.interval": ("30s", SCRAPED),
    "monitoring.provider.name": ("gmp", SCRAPED),
    "monitoring.provider.gmp.autopilot": (True, GMP),
    "monitoring.provider.prometheusoperator": ({"a": "b"}, SCRAPED),
    "monitoring.prometheus.enabled": (True, POOL),
    "monitoring.prometheus.auth.enabled": (False, SCRAPED),
    "monitoring.prometheus.auth.secretName": ("reader", SCRAPED),
    "monitoring.prometheus.extraLabels": ({"release": "prom"}, SCRAPED),
    "tracing.enabled": (True, POOL),
    "tracing.otelExporterEndpoint": ("http://collector:4317", TRACED),
    "tracing.sampling.sampler": ("always_on", TRACED),
    "tracing.sampling.samplerArg": ("0.5", TRACED),
    "inferencePool.create": (False, POOL),
    "inferencePool.failureMode": ("FailClosed", POOL),
    "inferenceObjectives": ([{"name": "high", "priority": 5}], POOL),
    "modelServers.type": ("sglang", POOL),
    "modelServers.protocol": ("grpc", POOL),
    "modelServers.targetPorts": ([{"number": 8000}, {"number": 8001}], POOL),
    "modelServers.targetPortNumber": (8200, POOL),
    "modelServers.matchLabels": ({"role": "decode"}, POOL),
    "latencyPredictor.enabled": (True, POOL),
    "latencyPredictor.trainingServer": ({"port": 8001}, PREDICTED),
    "latencyPredictor.predictionServers": ({"count": 4}, PREDICTED),
    "latencyPredictor.eppEnv": ({"LATENCY_MAX_SAMPLE_SIZE": "20000"}, PREDICTED),
}
