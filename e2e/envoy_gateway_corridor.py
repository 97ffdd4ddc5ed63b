"""A corridor of Envoy Gateway's: Envoy as it is told to be for `manifests/gateways/envoy-gateway`.

States what Envoy Gateway 1.9 (`internal/gatewayapi`, `internal/xds/translator`) makes of what these
objects say, and applies their EnvoyPatchPolicy to that. Listener, route and clusters are static
here, which come from a server there; addresses are those of this machine.
"""

import copy
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from e2e.corridor import Corridor, Plan, running
from epp.gateway.envoy import HTTP_OPTIONS, Json, http_manager, router, socket_address, typed

MANIFESTS = Path(__file__).parents[1] / "manifests" / "gateways" / "envoy-gateway"
ROUTE_CLUSTER = "httproute/inf/llm/rule/0"
PICKER_CLUSTER = "envoyextensionpolicy/inf/llm/extproc/0"
"""Named by the namespaces and names of the HTTPRoute and of the EnvoyExtensionPolicy."""
BUFFER_BYTES = 32_768
"""What Envoy Gateway has Envoy buffer of a connection, either side."""
_FILTER = f"envoy.filters.http.ext_proc/{PICKER_CLUSTER}"
_LISTENER = "inf/inference-gateway/http"
_WINDOWS = {"initial_stream_window_size": 65_536, "initial_connection_window_size": 1_048_576}
_EXTENSIONS = "envoy.extensions"
_PREVIOUS_HOSTS = "envoy.retry_host_predicates.previous_hosts"
_BODY_MODES = {
    None: "NONE",
    "Buffered": "BUFFERED",
    "BufferedPartial": "BUFFERED_PARTIAL",
    "Streamed": "STREAMED",
    "FullDuplexStreamed": "FULL_DUPLEX_STREAMED",
}
_LIMITS = {
    "maxConnections": "max_connections",
    "maxPendingRequests": "max_pending_requests",
    "maxParallelRequests": "max_requests",
}


class PolicyPlan(Plan, frozen=True, kw_only=True):
    """A plan with what is laid over the manifests.

    `ext_proc` over `extProc` of the EnvoyExtensionPolicy, `traffic` over `spec` of the
    BackendTrafficPolicy.
    """

    tls: bool = True
    ext_proc: Json = msgspec.field(default_factory=dict)
    traffic: Json = msgspec.field(default_factory=dict)


class EnvoyGatewayCorridor(Corridor):
    """Envoy as Envoy Gateway configures it, and the picker with TLS, as the chart starts it."""

    plan: PolicyPlan

    async def start_gateway(self) -> None:
        """Start Envoy with the arguments that Envoy Gateway gives it."""
        config = {
            "admin": {"address": socket_address("127.0.0.1", self.admin_port)},
            "static_resources": _resources(self.plan, self.port, self.grpc_port),
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


def _resources(plan: PolicyPlan, port: int, picker_port: int) -> Json:
    specs = _specs()
    (as_is,) = specs["EnvoyExtensionPolicy", "llm"]["extProc"]
    ext_proc = _laid_over(as_is, plan.ext_proc)
    traffic = _laid_over(specs["BackendTrafficPolicy", "llm"], plan.traffic)
    (rule,) = specs["HTTPRoute", "llm"]["rules"]
    (picker_ref,) = ext_proc["backendRefs"]
    picker = copy.deepcopy(specs["Backend", picker_ref["name"]])
    picker["endpoints"] = [{"fqdn": {"hostname": "localhost", "port": picker_port}}]
    (pods_ref,) = rule["backendRefs"]
    pods = _dns_cluster(ROUTE_CLUSTER, specs["Backend", pods_ref["name"]], traffic)
    _patch(pods, specs["EnvoyPatchPolicy", "llm"]["jsonPatches"])
    settings = ext_proc["backendSettings"]
    return {
        "listeners": [_listener(_ext_proc(ext_proc), _route(rule, traffic), port)],
        "clusters": [pods, _dns_cluster(PICKER_CLUSTER, picker, settings, grpc=True)],
    }


def _specs() -> dict[tuple[str, str], Any]:
    files = MANIFESTS.glob("*.yaml")
    objects = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    named = [each for each in objects if "metadata" in each]
    return {(each["kind"], each["metadata"]["name"]): each["spec"] for each in named}


def _laid_over(below: Any, above: Any) -> Any:
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    keys = [*below, *(key for key in above if key not in below)]
    return {
        key: _laid_over(below.get(key), above[key]) if key in above else below[key] for key in keys
    }


def _patch(cluster: Json, patches: list[Json]) -> None:
    for patch in patches:
        operation = patch["operation"]
        assert patch["name"] == cluster["name"]
        field = operation["path"].removeprefix("/")
        if operation["op"] == "remove":
            del cluster[field]
        else:
            assert operation["op"] == "add"
            cluster[field] = operation["value"]


def _listener(ext_proc: Json, route: Json, port: int) -> Json:
    host = {"name": f"{_LISTENER}/*", "domains": ["*"], "routes": [route]}
    manager = http_manager(
        stat_prefix="http-80",
        common_http_protocol_options={"headers_with_underscores_action": "REJECT_REQUEST"},
        http2_protocol_options={"max_concurrent_streams": 100, **_WINDOWS},
        http_filters=[ext_proc, router(suppress_envoy_headers=True)],
        merge_slashes=True,
        normalize_path=True,
        path_with_escaped_slashes_action="UNESCAPE_AND_REDIRECT",
        route_config={
            "name": _LISTENER,
            "ignore_port_in_host_matching": True,
            "virtual_hosts": [host],
        },
        server_header_transformation="PASS_THROUGH",
        use_remote_address=True,
    )
    return {
        "name": _LISTENER,
        "address": socket_address("127.0.0.1", port),
        "default_filter_chain": {"name": _LISTENER, **manager},
        "max_connections_to_accept_per_socket_event": 1,
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
    }


def _ext_proc(policy: Json) -> Json:
    (picker,) = policy["backendRefs"]
    metadata = policy["metadata"]
    # The filter is off but on the routes of its policy.
    return {
        "name": _FILTER,
        "disabled": True,
        "typed_config": typed(
            f"{_EXTENSIONS}.filters.http.ext_proc.v3.ExternalProcessor",
            grpc_service={
                "envoy_grpc": {
                    "cluster_name": PICKER_CLUSTER,
                    "authority": f"{picker['name']}.inf",
                },
                "timeout": "10s",
            },
            processing_mode={
                **_processing("request", policy["processingMode"]),
                **_processing("response", policy["processingMode"]),
            },
            failure_mode_allow=policy["failOpen"],
            message_timeout=policy["messageTimeout"],
            metadata_options={
                "forwarding_namespaces": {"untyped": metadata["accessibleNamespaces"]},
                "receiving_namespaces": {"untyped": metadata["writableNamespaces"]},
            },
            allow_mode_override=policy["processingMode"].get("allowModeOverride", False),
            status_on_error={"code": policy["statusOnError"]},
        ),
    }


def _processing(side: str, modes: Json) -> Json:
    body = _BODY_MODES[modes[side].get("body")]
    return {
        f"{side}_header_mode": "SEND",
        f"{side}_body_mode": body,
        f"{side}_trailer_mode": "SEND" if body == "FULL_DUPLEX_STREAMED" else "SKIP",
    }


def _route(rule: Json, traffic: Json) -> Json:
    action = {
        "cluster": ROUTE_CLUSTER,
        "timeout": rule["timeouts"]["request"],
        "idle_timeout": traffic["timeout"]["http"]["streamIdleTimeout"],
        "upgrade_configs": [{"upgrade_type": "websocket"}],
    }
    if "retry" in traffic:
        assert traffic["retry"] == {}
        action["retry_policy"] = _retries()
    return {
        "name": f"{ROUTE_CLUSTER}/match/0/*",
        "match": {"prefix": "/"},
        "route": action,
        "typed_per_filter_config": {
            _FILTER: typed("envoy.config.route.v3.FilterConfig", config={})
        },
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


def _dns_cluster(name: str, backend: Json, settings: Json, *, grpc: bool = False) -> Json:
    fqdn = backend["endpoints"][0]["fqdn"]
    limits = {_LIMITS[limit]: most for limit, most in settings["circuitBreaker"].items()}
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
    least = {"name": "envoy.load_balancing_policies.least_request", "typed_config": balancing}
    host: Json = {
        "endpoint": {"address": socket_address(fqdn["hostname"], fqdn["port"])},
        "load_balancing_weight": 1,
    }
    locality = {
        "locality": {"region": f"{name}/backend/0"},
        "load_balancing_weight": 1,
        "lb_endpoints": [host],
    }
    cluster = {
        "name": name,
        "circuit_breakers": {"thresholds": [{**limits, "max_retries": 1024}]},
        "cluster_type": {"name": "envoy.cluster.dns", "typed_config": resolving},
        "common_lb_config": {},
        "connect_timeout": "10s",
        "dns_lookup_family": "V4_PREFERRED",
        "ignore_health_on_host_removal": True,
        "load_assignment": {"cluster_name": name, "endpoints": [locality]},
        "load_balancing_policy": {"policies": [{"typed_extension_config": least}]},
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
    }
    options: Json = {}
    idle = settings.get("timeout", {}).get("http", {}).get("connectionIdleTimeout")
    if idle:
        options["common_http_protocol_options"] = {"idle_timeout": idle}
        options["explicit_http_config"] = {"http_protocol_options": {}}
    if grpc:
        options["explicit_http_config"] = {"http2_protocol_options": _http2(settings)}
    if "tls" in backend:
        assert backend["tls"] == {"insecureSkipVerify": True}
        host["metadata"] = {"filter_metadata": {"envoy.transport_socket_match": _match(name)}}
        options["upstream_http_protocol_options"] = {"auto_sni": True}
        cluster |= _sockets(name)
    if options:
        cluster["typed_extension_protocol_options"] = {HTTP_OPTIONS: typed(HTTP_OPTIONS, **options)}
    return cluster


def _http2(settings: Json) -> Json:
    keepalive = settings.get("http2", {}).get("connectionKeepalive")
    return _WINDOWS | ({"connection_keepalive": keepalive} if keepalive else {})


def _match(name: str) -> Json:
    return {"name": f"{name}/tls/0"}


def _sockets(name: str) -> Json:
    versions = {
        "tls_minimum_protocol_version": "TLSv1_2",
        "tls_maximum_protocol_version": "TLSv1_3",
    }
    socket = _tls("envoy.transport_sockets.tls", tls_params=versions)
    # Of a host with TLS the match counts; without the other the cluster would not be valid.
    return {
        "transport_socket": _tls("dummy.transport_socket"),
        "transport_socket_matches": [
            {**_match(name), "match": _match(name), "transport_socket": socket}
        ],
    }


def _tls(name: str, **common: Any) -> Json:
    # insecureSkipVerify: no validation context, so that any certificate is accepted.
    kind = f"{_EXTENSIONS}.transport_sockets.tls.v3.UpstreamTlsContext"
    return {"name": name, "typed_config": typed(kind, common_tls_context=common)}
