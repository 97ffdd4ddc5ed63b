"""The flags of `epp serve`, with llm-d-router's names and defaults for those that it has too."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.cli.llm_d_router_flags import add_llm_d_router
from epp.cli.observer_flags import add_observers
from epp.cli.pool_flags import add_pool
from epp.cli.replica_flags import add_replicas
from epp.cli.tls_flags import add_tls
from epp.cli.types import (
    BOOL,
    COUNT,
    FILE,
    INTERVAL,
    SIZE,
    TIME,
    count,
    port_number,
    quantity,
    refresh_interval,
    unless_empty,
    verbosity,
    words,
    zap_level,
)
from epp.config.file import DEFAULT_POLICY, POLICIES
from epp.protocol.extproc.observation import Observation

if TYPE_CHECKING:  # its import takes long, and `epp --help` does not wait for it
    from epp.adapters.telemetry.logs import Format, Level


_PROFILES = "--enable-pprof"
_SWITCHES = {
    "--debug-headers": "write the decision into the response header x-warmpick-decision",
    "--enable-grpc-stream-metrics": "count ext_proc streams in /metrics",
    "--former-metrics": "also write inference_extension_* metrics, which llm-d-router no longer"
    " has",
    "--emit-endpoint-scores": "write the endpoints' scores into the dynamic metadata of a request",
    "--disable-endpoint-subset-filter": "choose among all endpoints, even if the gateway names a"
    " subset",
    _PROFILES: "serve profiles at /debug/pprof/ on the metrics port (default: true)",
    "--request-orca": "ask model servers for load reports in response headers (vLLM logs a line"
    " each)",
}
"""Flags that are off by default, except for profiles."""


def observation(text: str) -> Observation:
    """Return which responses are observed to their end: `auto`, `all`, `first` or `sample:1/N`."""
    try:
        return Observation.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


WHICH: dict[str, Any] = {"type": observation, "default": "auto", "metavar": "WHICH"}
"""The arguments of the flag that says which responses are observed."""


def add_max_body_bytes(group: argparse._ArgumentGroup) -> None:
    """Add the flag that limits bodies."""
    group.add_argument(
        "--max-body-bytes",
        **SIZE,
        default=64 << 20,
        help="larger request bodies get 413 (default: 64Mi)",
    )


def add_eject_after(group: argparse._ArgumentGroup) -> None:
    """Add the flag that leaves out endpoints that fail."""
    group.add_argument(
        "--eject-after",
        type=count,
        default=5,
        metavar="FAILURES",
        help="after this many failed requests in a row, or a stall, an endpoint is left out for a"
        " while (default: 5; 0: never)",
    )


def add_hold(parser: argparse.ArgumentParser) -> None:
    """Add the flags that control when requests wait in the picker."""
    group = parser.add_argument_group("overload")
    group.add_argument(
        "--hold",
        choices=("auto", "off"),
        default="auto",
        help="auto: a request waits in the picker while its best endpoint has no room; off: it is"
        " sent at once, and only counted (default: auto)",
    )
    group.add_argument(
        "--hold-timeout",
        **TIME,
        default=240.0,
        help="a request that has waited this long is sent even if there is no room; keep it below"
        " the gateway's stream_idle_timeout, which is 5m in Envoy (default: 4m)",
    )
    group.add_argument(
        "--hold-empty-timeout",
        **TIME,
        default=0.0,
        help="how long requests wait for the first endpoint of an empty pool (default: 0: they get"
        " 503 at once)",
    )
    group.add_argument(
        "--gateway-message-timeout",
        **TIME,
        default=0.2,
        help="message_timeout of the gateway's ext_proc filter; a request waits for at most half of"
        " it, in every body mode but full duplex, in which it does not run (default: 200ms,"
        " Envoy's)",
    )


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose the policy."""
    policy = parser.add_argument_group("policy")
    group = policy.add_mutually_exclusive_group()
    group.add_argument(
        "--config-file",
        type=unless_empty(Path),
        metavar="FILE",
        help="an EndpointPickerConfig (YAML)",
    )
    group.add_argument(
        "--config-text", type=unless_empty(str), metavar="YAML", help="the same, as text"
    )
    group.add_argument(
        "--policy",
        choices=POLICIES,
        help=f"a policy by name (default: {DEFAULT_POLICY}); linear is llm-d-router's default",
    )
    policy.add_argument(
        "--feature-gates",
        type=words,
        action="extend",
        default=[],
        metavar="GATES",
        help="name, name=true or name=false, separated by commas, in place of the configuration's",
    )


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Add every flag of `epp serve`."""
    add_policy(parser)
    pool = parser.add_argument_group("pool")
    add_pool(pool)
    pool.add_argument(
        "--scrape-interval",
        **INTERVAL,
        default=1.0,
        help="how often each endpoint's /metrics is read (default: 1s)",
    )
    pool.add_argument(
        "--refresh-metrics-interval",
        dest="scrape_interval",
        type=refresh_interval,
        default=argparse.SUPPRESS,
        metavar="TIME",
        help="llm-d-router's name for it; at least 50ms",
    )
    pool.add_argument(
        "--poll-models",
        **BOOL,
        default=False,
        help="read each endpoint's /v1/models every 5 s, send requests where their model is"
        " listed, and answer GET /v1/models with all (as models-responder in a configuration)",
    )
    _add_listen(parser)
    behaviour = parser.add_argument_group("behaviour")
    _add_behaviour(behaviour)
    _add_logs(behaviour)
    add_hold(parser)
    add_replicas(parser)
    add_observers(parser)
    add_llm_d_router(parser)


def _add_listen(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("listening")
    group.add_argument(
        "--bind-address",
        type=lambda text: text.strip("[]"),
        default="",
        metavar="ADDRESS",
        help="where to listen (default: all addresses, IPv4 and IPv6)",
    )
    for name, port, what in (
        ("--grpc-port", 9002, "ext_proc"),
        ("--grpc-health-port", 9003, "gRPC health, plaintext"),
        ("--metrics-port", 9090, "/metrics, /healthz, /readyz"),
    ):
        group.add_argument(
            name,
            type=port_number,
            default=port,
            metavar="PORT",
            help=f"{what} (default: {port}; 0: any)",
        )
    group.add_argument(
        "--secure-serving",
        **BOOL,
        default=True,
        help="serve TLS on the ext_proc port (default: true)",
    )
    group.add_argument(
        "--cert-path",
        type=unless_empty(Path),
        metavar="DIR",
        help="folder with its tls.crt and tls.key (default: a self-signed certificate is made)",
    )
    group.add_argument(
        "--health-checking",
        **BOOL,
        default=False,
        help="serve gRPC health on the ext_proc port too",
    )
    add_tls(group)
    group.add_argument(
        "--transport",
        choices=("native", "grpcio"),
        default="native",
        help="for ext_proc and health; grpcio, with a warning, if native is not built"
        " (default: native)",
    )


def _add_behaviour(group: argparse._ArgumentGroup) -> None:
    add_max_body_bytes(group)
    group.add_argument(
        "--grpc-max-recv-msg-size",
        type=unless_empty(quantity, 0),
        default=0,
        metavar="SIZE",
        help="longer ext_proc messages end their stream (default: --max-body-bytes plus 1Mi)",
    )
    group.add_argument(
        "--max-held-bytes",
        **SIZE,
        default=0,
        help="bytes that unfinished requests may hold together before the largest get 429"
        " (default: a quarter of the memory limit)",
    )
    group.add_argument(
        "--request-timeout",
        **TIME,
        default=300.0,
        help="requests that take longer get 408 (default: 5m; 0: never)",
    )
    group.add_argument(
        "--observe-responses",
        **WHICH,
        help="streamed responses to watch to the end: all, first (chunk of each), sample:1/N, or"
        " auto: those that teach something (default: auto; any but all needs the gateway's"
        " response_body_mode to be STREAMED)",
    )
    add_eject_after(group)
    group.add_argument(
        "--drain-timeout",
        **TIME,
        default=30.0,
        help="after SIGTERM, how long open streams may take to end (default: 30s)",
    )
    for name, what in _SWITCHES.items():
        group.add_argument(name, **BOOL, default=name == _PROFILES, help=what)
    group.add_argument(
        "--fairness-id-metric-label-limit",
        **COUNT,
        default=1000,
        help="fairness ids that have metrics of their own; others are `other` (default: 1000)",
    )
    group.add_argument(
        "--hash-secret-file",
        **FILE,
        help="secret that keys block hashes; replicas that must agree share it (default: random)",
    )


def _add_logs(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="debug logs every request, never its text (default: info)",
    )
    group.add_argument(
        "-v",
        "--v",
        dest="log_level",
        type=verbosity,
        default=argparse.SUPPRESS,
        metavar="N",
        help="as in llm-d-router; 4 or more means --log-level=debug",
    )
    group.add_argument(
        "--zap-log-level",
        type=zap_level,
        metavar="LEVEL",
        help="as in llm-d-router: debug, info, error, panic or a number; overrides -v",
    )
    group.add_argument(
        "--log-format",
        "--zap-encoder",
        choices=("console", "json"),
        help="(default: console on a terminal, else json)",
    )


def log_settings(arguments: argparse.Namespace) -> tuple["Level", "Format"]:
    """Return the level and the form of log lines."""
    form = arguments.log_format
    if form is None and arguments.zap_devel is not None:
        form = "console" if arguments.zap_devel else "json"
    return (
        arguments.zap_log_level or arguments.log_level,
        form or ("console" if sys.stderr.isatty() else "json"),
    )
