"""A corridor of llm-d-router's: the Envoy of its standalone chart, and the picker with its flags.

The configuration states the facts of `llm-d-router-standalone` 0.10 (`router.proxy.presets.envoy`,
proxy as a sidecar), with the addresses of this machine in place of the pod's.
"""

import json
import sys
from typing import Any

from e2e.corridor import TRANSPORT
from e2e.kube_corridor import KubeCorridor
from epp.gateway.processes import spawn
from tests.llm_d_router_configs import CHART_PLUGINS

_TYPES = "type.googleapis.com/envoy.extensions"
_MANAGER = f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"
_EXT_PROC = f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor"
_ROUTER = f"{_TYPES}.filters.http.router.v3.Router"
_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_FILTER = "type.googleapis.com/envoy.config.route.v3.FilterConfig"
_WINDOWS = {"initial_stream_window_size": 65536, "initial_connection_window_size": 1048576}
_LIMITS = {"max_connections": 40000, "max_pending_requests": 40000, "max_requests": 40000}


def _at(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _processing() -> dict[str, Any]:
    return {
        "request_header_mode": "SEND",
        "response_header_mode": "SEND",
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_trailer_mode": "SEND",
    }


def _listener(port: int) -> dict[str, Any]:
    route = {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "original_destination_cluster",
            "timeout": "86400s",
            "idle_timeout": "86400s",
            "upgrade_configs": [{"upgrade_type": "websocket"}],
        },
        "typed_per_filter_config": {
            "envoy.filters.http.ext_proc": {"@type": _FILTER, "config": {}}
        },
    }
    picker = {
        "@type": _EXT_PROC,
        "failure_mode_allow": False,
        "grpc_service": {
            "envoy_grpc": {"cluster_name": "ext_proc", "authority": "localhost:9002"},
            "timeout": "10s",
        },
        "processing_mode": _processing(),
        "message_timeout": "1000s",
    }
    manager = {
        "@type": _MANAGER,
        "stat_prefix": "http-8081",
        "route_config": {
            "name": "vllm",
            "virtual_hosts": [{"name": "vllm-default", "domains": ["*"], "routes": [route]}],
        },
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": picker},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": _ROUTER, "suppress_envoy_headers": True},
            },
        ],
        "http2_protocol_options": {"max_concurrent_streams": 100, **_WINDOWS},
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "server_header_transformation": "PASS_THROUGH",
        "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
    }
    connection = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "name": "vllm",
        "address": _at(port),
        "per_connection_buffer_limit_bytes": 32768,
        "filter_chains": [{"name": "vllm", "filters": [connection]}],
    }


def _picker(port: int) -> dict[str, Any]:
    service = "envoy.service.ext_proc.v3.ExternalProcessor"
    tls = f"{_TYPES}.transport_sockets.tls.v3.UpstreamTlsContext"
    return {
        "name": "ext_proc",
        "type": "STATIC",
        "connect_timeout": "86400s",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {"thresholds": [{**_LIMITS, "max_retries": 1024}]},
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "10s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 2,
                "reuse_connection": True,
                "grpc_health_check": {"service_name": service},
                "tls_options": {"alpn_protocols": ["h2"]},
            }
        ],
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": tls, "common_tls_context": {"validation_context": {}}},
        },
        "typed_extension_protocol_options": {
            _HTTP: {
                "@type": f"type.googleapis.com/{_HTTP}",
                "explicit_http_config": {"http2_protocol_options": _WINDOWS},
            }
        },
        "load_assignment": {
            "cluster_name": "ext_proc",
            "endpoints": [
                {
                    "locality": {"region": "ext_proc/e2e/0"},
                    "lb_endpoints": [
                        {"endpoint": {"address": _at(port)}, "load_balancing_weight": 1}
                    ],
                }
            ],
        },
    }


def envoy_config(listen_port: int, admin_port: int, picker_port: int) -> str:
    """The bootstrap configuration as JSON (which is YAML too)."""
    pods = {
        "name": "original_destination_cluster",
        "type": "ORIGINAL_DST",
        "connect_timeout": "1000s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": {"thresholds": [_LIMITS]},
        "original_dst_lb_config": {
            "use_http_header": True,
            "http_header_name": "x-gateway-destination-endpoint",
        },
    }
    resources = {"listeners": [_listener(listen_port)], "clusters": [pods, _picker(picker_port)]}
    return json.dumps({"admin": {"address": _at(admin_port)}, "static_resources": resources})


class LlmDRouterCorridor(KubeCorridor):
    """Envoy and picker as llm-d-router's standalone chart starts them, without an InferencePool.

    The picker's flags are the chart's, with `--metrics-endpoint-auth=false` (its value
    `router.monitoring.prometheus.auth.enabled: false`), so that the test reads its metrics.
    """

    async def spawn_picker(self) -> None:
        """Start the picker on its ports."""
        path = self.directory / "default-plugins.yaml"
        path.write_text(CHART_PLUGINS)
        argv = [
            *(sys.executable, "-m", "epp"),
            *("--endpoint-selector", "app=vllm", "--endpoint-target-ports", str(self.pod_port)),
            *("--zap-encoder", "json", "--config-file", str(path)),
            *("--grpc-health-port", str(self.health_port), "--tracing=false"),
            "--metrics-endpoint-auth=false",
            *("--kubeconfig", str(self.kubeconfig), f"--transport={TRANSPORT}"),
            *("--grpc-port", str(self.grpc_port), "--metrics-port", str(self.metrics_port)),
            *self.plan.picker_flags,
        ]
        self.picker = await spawn("epp", argv, log_dir=self.directory)
        self._stop.push_async_callback(self.picker.stop, 0)

    async def start_gateway(self) -> None:
        """Start Envoy with the chart's own configuration and arguments."""
        config = envoy_config(self.port, self.admin_port, self.grpc_port)
        flags = ("--service-node", "envoy-proxy", "--drain-strategy", "immediate")
        await self.spawn_envoy(config, *flags, "--drain-time-s", "60")
