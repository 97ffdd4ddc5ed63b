"""A corridor of Envoy Gateway's: Envoy as it is told to be for the objects of `docs/kubernetes.md`.

States what Envoy Gateway 1.9 (`internal/gatewayapi`, `internal/xds/translator`) makes of a release
`llm` in the namespace `inf`: of the HTTPRoute and its Backend, the Backend of the picker, the
EnvoyExtensionPolicy, the BackendTrafficPolicy, and the EnvoyPatchPolicy that turns the cluster of
the route into one that goes where the picker says. Listeners, routes and clusters are static here,
which come from a server there; addresses are those of this machine.
"""

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from e2e.corridor import Corridor, Plan, running
from epp.gateway.envoy_parts import (
    DESTINATION,
    HTTP_OPTIONS,
    Json,
    http_manager,
    router,
    socket_address,
    typed,
)

ROUTE_CLUSTER = "httproute/inf/llm/rule/0"
PICKER_CLUSTER = "envoyextensionpolicy/inf/llm/extproc/0"
FILTER = f"envoy.filters.http.ext_proc/{PICKER_CLUSTER}"
"""Every policy has a filter of its own name, which is off but on the routes of the policy."""
MOST = 65_535
"""Of `circuitBreaker`, in both policies."""
BUFFER_BYTES = 32_768
"""What Envoy Gateway has Envoy buffer of a connection, either side."""
_WINDOWS = {"initial_stream_window_size": 65_536, "initial_connection_window_size": 1_048_576}
_EXTENSIONS = "envoy.extensions"
_TLS = f"{_EXTENSIONS}.transport_sockets.tls.v3.UpstreamTlsContext"
_PREVIOUS_HOSTS = "envoy.retry_host_predicates.previous_hosts"


class PolicyPlan(Plan, frozen=True, kw_only=True):
    """A plan with what users may set in objects of Envoy Gateway.

    Of the HTTPRoute `timeouts.request`; of the EnvoyExtensionPolicy `messageTimeout` and
    `backendSettings.http2.connectionKeepalive`; of the BackendTrafficPolicy
    `timeout.http.streamIdleTimeout` and `retry: {}`. What is 0 or false is not set.
    """

    tls: bool = True
    response_body_mode: Any = "STREAMED"
    request_timeout_s: float = 300
    message_timeout_s: float = 10
    keepalive_interval_s: float = 0
    keepalive_timeout_s: float = 0
    stream_idle_timeout_s: float = 300
    retry: bool = False


class EnvoyGatewayCorridor(Corridor):
    """Envoy as Envoy Gateway configures it, and the picker with TLS, as the chart starts it."""

    plan: PolicyPlan

    async def start_gateway(self) -> None:
        """Start Envoy with the arguments that Envoy Gateway gives it."""
        resources = {
            "listeners": [_listener(self.plan, self.port)],
            "clusters": [_route_cluster(), _picker_cluster(self.plan, self.grpc_port)],
        }
        config = {
            "admin": {"address": socket_address("127.0.0.1", self.admin_port)},
            "static_resources": resources,
        }
        await self.spawn_envoy(json.dumps(config), "--drain-strategy", "immediate")

    async def stat(self, cluster: str, name: str) -> int:
        """Read one of Envoy's figures of a cluster."""
        url = f"http://127.0.0.1:{self.admin_port}/stats?format=json"
        full = f"cluster.{cluster}.{name}"
        async with self.client.get(url, params={"filter": f"^{full}$"}) as response:
            (figure,) = (await response.json())["stats"]
        assert figure["name"] == full
        return int(figure["value"])


def envoy_gateway_corridor(
    plan: PolicyPlan, directory: Path
) -> AbstractAsyncContextManager[EnvoyGatewayCorridor]:
    """Start what a plan says; stop it at the end, logs stay in the directory."""
    return running(EnvoyGatewayCorridor, plan, directory)


def _listener(plan: PolicyPlan, port: int) -> Json:
    manager = http_manager(
        stat_prefix="http-80",
        common_http_protocol_options={"headers_with_underscores_action": "REJECT_REQUEST"},
        http2_protocol_options={"max_concurrent_streams": 100, **_WINDOWS},
        http_filters=[_picking(plan), router(suppress_envoy_headers=True)],
        merge_slashes=True,
        normalize_path=True,
        path_with_escaped_slashes_action="UNESCAPE_AND_REDIRECT",
        route_config=_routes(plan),
        server_header_transformation="PASS_THROUGH",
        use_remote_address=True,
    )
    return {
        "name": "inf/inference-gateway/http",
        "address": socket_address("127.0.0.1", port),
        "default_filter_chain": {"name": "inf/inference-gateway/http", **manager},
        "max_connections_to_accept_per_socket_event": 1,
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
    }


def _picking(plan: PolicyPlan) -> Json:
    modes = {
        "request_header_mode": "SEND",
        "request_body_mode": plan.request_body_mode,
        "request_trailer_mode": _trailers(plan.request_body_mode),
        "response_header_mode": "SEND",
        "response_body_mode": plan.response_body_mode,
        "response_trailer_mode": _trailers(plan.response_body_mode),
    }
    # The authority is that of the Backend; a Backend has no port of its own to name.
    picker = {"cluster_name": PICKER_CLUSTER, "authority": "llm-epp.inf"}
    return {
        "name": FILTER,
        "disabled": True,
        "typed_config": typed(
            f"{_EXTENSIONS}.filters.http.ext_proc.v3.ExternalProcessor",
            grpc_service={"envoy_grpc": picker, "timeout": "10s"},
            processing_mode=modes,
            failure_mode_allow=plan.failure_mode_allow,
            message_timeout=f"{plan.message_timeout_s:g}s",
            metadata_options={
                "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
            allow_mode_override=False,
            status_on_error={"code": "ServiceUnavailable"},
        ),
    }


def _trailers(body_mode: str) -> str:
    return "SEND" if body_mode == "FULL_DUPLEX_STREAMED" else "SKIP"


def _routes(plan: PolicyPlan) -> Json:
    # Without a policy's own, no stream ends for idleness before its request's time is over.
    idle = plan.stream_idle_timeout_s or max(3600, plan.request_timeout_s)
    action: Json = {
        "cluster": ROUTE_CLUSTER,
        "timeout": f"{plan.request_timeout_s:g}s",
        "idle_timeout": f"{idle:g}s",
        "upgrade_configs": [{"upgrade_type": "websocket"}],
    }
    if plan.retry:
        action["retry_policy"] = _retries()
    route = {
        "name": f"{ROUTE_CLUSTER}/match/0/*",
        "match": {"prefix": "/"},
        "route": action,
        "typed_per_filter_config": {FILTER: typed("envoy.config.route.v3.FilterConfig", config={})},
    }
    host = {"name": "inf/inference-gateway/http/*", "domains": ["*"], "routes": [route]}
    return {
        "name": "inf/inference-gateway/http",
        "ignore_port_in_host_matching": True,
        "virtual_hosts": [host],
    }


def _retries() -> Json:
    # Of a policy that says `retry` and no more; a route without one gets no retry_policy at all.
    kind = f"{_EXTENSIONS}.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return {
        "retry_on": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": 2,
        "retry_host_predicate": [{"name": _PREVIOUS_HOSTS, "typed_config": typed(kind)}],
        "host_selection_retry_max_attempts": 5,
    }


def _cluster(name: str, **fields: Any) -> Json:
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), MOST)
    return {
        "name": name,
        "circuit_breakers": {"thresholds": [{**limits, "max_retries": 1024}]},
        "common_lb_config": {},
        "connect_timeout": "10s",
        "dns_lookup_family": "V4_PREFERRED",
        "ignore_health_on_host_removal": True,
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        **fields,
    }


def _route_cluster() -> Json:
    # As patched: without cluster_type, load_balancing_policy and load_assignment.
    return _cluster(
        ROUTE_CLUSTER,
        type="ORIGINAL_DST",
        lb_policy="CLUSTER_PROVIDED",
        original_dst_lb_config={"use_http_header": True, "http_header_name": DESTINATION},
    )


def _http2(plan: PolicyPlan) -> Json:
    keepalive = {
        "interval": f"{plan.keepalive_interval_s:g}s",
        "timeout": f"{plan.keepalive_timeout_s:g}s",
    }
    return _WINDOWS | ({"connection_keepalive": keepalive} if plan.keepalive_interval_s else {})


def _picker_cluster(plan: PolicyPlan, port: int) -> Json:
    socket_name = f"{PICKER_CLUSTER}/tls/0"
    versions = {
        "tls_minimum_protocol_version": "TLSv1_2",
        "tls_maximum_protocol_version": "TLSv1_3",
    }
    resolving = typed(
        f"{_EXTENSIONS}.clusters.dns.v3.DnsCluster",
        dns_lookup_family="V4_PREFERRED",
        dns_refresh_rate="30s",
        respect_dns_ttl=True,
    )
    balancing = typed(
        f"{_EXTENSIONS}.load_balancing_policies.least_request.v3.LeastRequest",
        locality_lb_config={"locality_weighted_lb_config": {}},
    )
    policy = {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": balancing,
    }
    host = {
        "endpoint": {"address": socket_address("localhost", port)},
        "load_balancing_weight": 1,
        "metadata": {"filter_metadata": {"envoy.transport_socket_match": {"name": socket_name}}},
    }
    locality = {
        "locality": {"region": f"{PICKER_CLUSTER}/backend/0"},
        "load_balancing_weight": 1,
        "lb_endpoints": [host],
    }
    return _cluster(
        PICKER_CLUSTER,
        cluster_type={"name": "envoy.cluster.dns", "typed_config": resolving},
        load_assignment={"cluster_name": PICKER_CLUSTER, "endpoints": [locality]},
        load_balancing_policy={"policies": [{"typed_extension_config": policy}]},
        # Of every host with TLS the match below counts; without it this would not be valid.
        transport_socket=_tls("dummy.transport_socket"),
        transport_socket_matches=[
            {
                "name": socket_name,
                "match": {"name": socket_name},
                "transport_socket": _tls("envoy.transport_sockets.tls", tls_params=versions),
            }
        ],
        typed_extension_protocol_options={
            HTTP_OPTIONS: typed(
                HTTP_OPTIONS,
                explicit_http_config={"http2_protocol_options": _http2(plan)},
                upstream_http_protocol_options={"auto_sni": True},
            )
        },
    )


def _tls(name: str, **common: Any) -> Json:
    # insecureSkipVerify: no validation context, so that any certificate is accepted.
    return {"name": name, "typed_config": typed(_TLS, common_tls_context=common)}
