"""Envoy on loopback with any body modes and balancing, for benchmarks and tests."""

import json
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from epp.gateway.envoy import (
    CONNECT_SECONDS,
    HTTP_OPTIONS,
    MESSAGE_SECONDS,
    BodyMode,
    Json,
    all_protocols,
    assignment,
    breakers,
    envoy_binary,
    ext_proc,
    http2_options,
    http_manager,
    override_host,
    picker_cluster,
    policy,
    retries,
    round_robin,
    router,
    socket_address,
    typed,
)
from epp.gateway.processes import Process, free_port, spawn
from epp.protocol.extproc.names import DESTINATION

Routing = Literal["original_dst", "override_host", "round_robin", "least_request"]

READY_SECONDS = 20


class PickerPorts(NamedTuple):
    """Where one of several pickers listens on loopback, for requests and for health checks."""

    grpc: int
    health: int


class EnvoySettings(msgspec.Struct, frozen=True, kw_only=True):
    """One Envoy: a listener on 127.0.0.1, model servers behind it, a picker beside it.

    `endpoints` are `ip:port`. Under `round_robin` and `least_request` Envoy balances alone and
    never calls the picker. `reuse_port`: each thread listens for itself, as in gateways.
    `original_dst` follows the picker's header to any address,
    `override_host` only to one of `endpoints`. `h2c`: model servers speak HTTP/2 alone.
    `pickers`, if any, are asked in turn while they are healthy, in place of `epp_port`; a pick that
    one of them does not answer is asked of another one. `response_headers`: these are shown.
    """

    endpoints: tuple[str, ...]
    listen_port: int = msgspec.field(default_factory=free_port)
    admin_port: int = msgspec.field(default_factory=free_port)
    epp_port: int = 0
    routing: Routing = "override_host"
    h2c: bool = False
    epp_tls: bool = False
    pickers: tuple[PickerPorts, ...] = ()
    failure_mode_allow: bool = False
    request_body_mode: BodyMode = "FULL_DUPLEX_STREAMED"
    response_body_mode: BodyMode = "FULL_DUPLEX_STREAMED"
    response_headers: bool = True
    message_timeout_s: float = MESSAGE_SECONDS
    stream_idle_timeout_s: float = 30
    concurrency: int = 1
    reuse_port: bool = False

    @property
    def picks(self) -> bool:
        """Whether Envoy calls the picker at all."""
        return self.routing in {"original_dst", "override_host"}

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self.listen_port}"


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
            *("--log-level", "warning"),
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
    clusters = [_pool(settings), *([_pickers(settings)] if settings.picks else [])]
    return json.dumps(
        {
            "admin": {"address": socket_address("127.0.0.1", settings.admin_port)},
            "static_resources": {"listeners": [_listener(settings)], "clusters": clusters},
        },
        indent=1,
    )


def _pickers(settings: EnvoySettings) -> Json:
    cluster = picker_cluster(settings.epp_port, tls=settings.epp_tls)
    if not settings.pickers:
        return cluster
    hosts: list[Json] = [
        {
            "endpoint": {
                "address": socket_address("127.0.0.1", picker.grpc),
                "health_check_config": {"port_value": picker.health},
            }
        }
        for picker in settings.pickers
    ]
    options = http2_options()
    # Who hangs has connections that break, so that what waits for it is asked of another one.
    # With them answers break that are watched in full duplex: who is late for a moment keeps them.
    late = "5s" if settings.response_body_mode == "FULL_DUPLEX_STREAMED" else "1s"
    options[HTTP_OPTIONS]["explicit_http_config"]["http2_protocol_options"] |= {
        "connection_keepalive": {"interval": late, "timeout": late}
    }
    return cluster | {
        "typed_extension_protocol_options": options,
        "load_assignment": {"cluster_name": "epp", "endpoints": [{"lb_endpoints": hosts}]},
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                # Before the first request, too: Envoy's own is a minute.
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {},
            }
        ],
        # A picker that is away is not asked, however many are.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    }


_RETRIES = retries("connect-failure,refused-stream,reset,unavailable")
"""How a pick is asked of another picker, until the first has begun to answer."""
_POOL_HOST: Json = {
    "name": "pool",
    "domains": ["*"],
    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "0s"}}],
}
_FAILURES: Json = {
    "name": "envoy.access_loggers.stderr",
    "filter": {
        "status_code_filter": {
            "comparison": {"op": "GE", "value": {"default_value": 500, "runtime_key": "failures"}}
        }
    },
    "typed_config": typed(
        "envoy.extensions.access_loggers.stream.v3.StderrAccessLog",
        log_format={
            "text_format_source": {
                "inline_string": "%START_TIME% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS%"
                " %RESPONSE_FLAGS% after %DURATION% ms, upstream %UPSTREAM_HOST%\n"
            }
        },
    ),
}
"""What Envoy's log says of each answer of 500 or more."""


def _listener(settings: EnvoySettings) -> Json:
    modes = (settings.request_body_mode, settings.response_body_mode)
    asking = ext_proc(
        *modes,
        fail_open=settings.failure_mode_allow,
        message_seconds=settings.message_timeout_s,
    )
    if not settings.response_headers:
        asking["typed_config"]["processing_mode"]["response_header_mode"] = "SKIP"
    if settings.pickers:
        asking["typed_config"]["grpc_service"]["retry_policy"] = _RETRIES
    picking = [asking] if settings.picks else []
    manager = http_manager(
        stat_prefix="gateway",
        stream_idle_timeout=f"{settings.stream_idle_timeout_s:g}s",
        access_log=[_FAILURES],
        http_filters=[*picking, router()],
        route_config={"virtual_hosts": [_POOL_HOST]},
        **all_protocols(),
    )
    return {
        "name": "gateway",
        "address": socket_address("127.0.0.1", settings.listen_port),
        # Envoy binds with SO_REUSEPORT by default: two on one port would share its connections.
        # Without it one of its threads may take all of them.
        "enable_reuse_port": settings.reuse_port,
        "filter_chains": [manager],
    }


def _least_request() -> Json:
    """Return Envoy's own choice of the host with the fewest requests."""
    return policy("least_request", "v3.LeastRequest")


_BALANCING = {
    "override_host": override_host,
    "round_robin": round_robin,
    "least_request": _least_request,
}


def _pool(settings: EnvoySettings) -> Json:
    cluster: Json = {
        "name": "pool",
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "circuit_breakers": breakers(),
    }
    if settings.h2c:
        cluster["typed_extension_protocol_options"] = http2_options()
    if settings.routing == "original_dst":
        by_header = {"use_http_header": True, "http_header_name": DESTINATION}
        return cluster | {
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": by_header,
        }
    return cluster | {
        "type": "STATIC",
        "load_assignment": assignment("pool", settings.endpoints),
        "load_balancing_policy": _BALANCING[settings.routing](),
    }
