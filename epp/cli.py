"""The command `epp`: what it takes, and what it says when that is not usable."""

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from epp import __version__
from epp.adapters.tokens.build import complaint
from epp.config import DEFAULT_POLICY, POLICIES, Settings, dump, load
from epp.errors import ConfigError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_LAST_PORT = 65_535
_TRUE, _FALSE = {"true", "1", "t", "yes"}, {"false", "0", "f", "no"}


def duration(text: str) -> float:
    """Read a Go duration (`500ms`, `30s`, `1m30s`) or plain seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    if not parts or "".join(map("".join, parts)) != text:
        raise argparse.ArgumentTypeError(f"`{text}` is no duration; write 500ms, 30s or 1m30s")
    return sum(float(value) * _UNITS[unit] for value, unit in parts)


def size(text: str) -> int:
    """Read a Kubernetes quantity of bytes (`16Mi`, `1G`, `65536`)."""
    found = re.fullmatch(r"(\d+)(K|M|G|Ki|Mi|Gi)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` is no size; write 65536, 16Mi or 1G")
    return int(found[1]) * _SIZES[found[2] or ""]


def port_number(text: str) -> int:
    """Read a port; 0 is any."""
    if not text.isdecimal() or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"`{text}` is no port; write 0 to {_LAST_PORT}")
    return int(text)


def interval(text: str) -> float:
    """Read a duration that is longer than nothing."""
    seconds = duration(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"`{text}` is no interval; write 500ms or 1s")
    return seconds


def boolean(text: str) -> bool:
    """Read a Go boolean."""
    if text.lower() not in _TRUE | _FALSE:
        raise argparse.ArgumentTypeError(f"`{text}` is neither true nor false")
    return text.lower() in _TRUE


def _flag(group: argparse._ArgumentGroup, name: str, **more: object) -> None:
    """Add a boolean flag that takes `--flag`, `--flag=true` and `--flag=false`, as Go's do."""
    group.add_argument(name, type=boolean, nargs="?", const=True, metavar="BOOL", **more)  # type: ignore[arg-type]  # argparse's own loose signature


def _add_policy(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("policy").add_mutually_exclusive_group()
    group.add_argument(
        "--config-file", type=Path, metavar="FILE", help="an EndpointPickerConfig (YAML)"
    )
    group.add_argument("--config-text", metavar="YAML", help="the same, as text")
    group.add_argument(
        "--policy",
        choices=POLICIES,
        help=f"a policy by name (default: {DEFAULT_POLICY}); linear is llm-d-router's default",
    )


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_policy(parser)
    pool = parser.add_argument_group("pool")
    pool.add_argument(
        "--endpoints-file",
        type=Path,
        metavar="FILE",
        help="endpoints: [{name, namespace, address, port, labels}] as YAML; followed for changes",
    )
    pool.add_argument("--pool-name", default="default", help="name of the pool in metrics")
    pool.add_argument(
        "--scrape-interval",
        "--refresh-metrics-interval",
        type=interval,
        default=1.0,
        metavar="TIME",
        help="how often each endpoint's /metrics is read (default: 1s)",
    )
    _add_listen(parser)
    _add_behaviour(parser)


def _add_listen(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("listening")
    group.add_argument(
        "--bind-address",
        default="0.0.0.0",  # noqa: S104 (a pod is reached from outside)
        help="(default: %(default)s)",
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
    _flag(group, "--secure-serving", default=True, help="TLS on the ext_proc port (default: true)")
    group.add_argument(
        "--cert-path",
        type=Path,
        metavar="DIR",
        help="tls.crt and tls.key for it; without, a self-signed certificate is made",
    )
    _flag(group, "--health-checking", default=False, help="gRPC health on the ext_proc port too")
    group.add_argument(
        "--transport", choices=("native", "grpcio"), default="native", help="(default: native)"
    )


def _add_behaviour(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("behaviour")
    group.add_argument(
        "--max-body-bytes",
        type=size,
        default=64 << 20,
        metavar="SIZE",
        help="larger request bodies get 413 (default: 64Mi)",
    )
    group.add_argument(
        "--drain-timeout",
        type=duration,
        default=30.0,
        metavar="TIME",
        help="after SIGTERM, how long open streams may take to end (default: 30s)",
    )
    _flag(
        group,
        "--debug-headers",
        default=False,
        help="tell clients what was decided in the response header x-warmpick-decision",
    )
    _flag(
        group,
        "--request-orca",
        default=False,
        help="ask model servers for load reports in response headers (vLLM logs a line each)",
    )
    group.add_argument(
        "--hash-secret-file",
        type=Path,
        metavar="FILE",
        help="secret that keys block hashes, for replicas that are to agree (default: random)",
    )
    group.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="debug logs every request, never its text (default: info)",
    )
    group.add_argument(
        "--log-format",
        default="console" if sys.stderr.isatty() else "json",
        choices=("console", "json"),
        help="(default: console on a terminal, else json)",
    )


def _read(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", flag) from None


def _text(path: Path, flag: str) -> str:
    try:
        return _read(path, flag).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason}", flag) from None


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.config_file is not None:
        return load(_text(arguments.config_file, "--config-file"))
    if arguments.config_text is not None:
        return load(arguments.config_text)
    return load(POLICIES[arguments.policy or DEFAULT_POLICY])


def _serve(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    endpoints = arguments.endpoints_file or (
        Path(settings.endpoints_file) if settings.endpoints_file else None
    )
    if endpoints is None:
        raise ConfigError(
            "no endpoints: name a file with --endpoints-file, or with a file-discovery plug-in"
        )
    # Imported here so that `epp check` and `epp --help` do not wait for servers they do not run.
    import uvloop  # noqa: PLC0415

    from epp.adapters.telemetry.logs import configure_logs  # noqa: PLC0415
    from epp.app import ServeOptions, serve  # noqa: PLC0415

    configure_logs(arguments.log_level, arguments.log_format)
    secret = arguments.hash_secret_file
    options = ServeOptions(
        settings=settings,
        endpoints_file=endpoints,
        pool_name=arguments.pool_name,
        bind_address=arguments.bind_address,
        grpc_port=arguments.grpc_port,
        health_port=arguments.grpc_health_port,
        metrics_port=arguments.metrics_port,
        secure=arguments.secure_serving,
        cert_path=arguments.cert_path,
        health_on_grpc_port=arguments.health_checking,
        transport=arguments.transport,
        max_body_bytes=arguments.max_body_bytes,
        scrape_interval=arguments.scrape_interval,
        drain_timeout=arguments.drain_timeout,
        show_decision=arguments.debug_headers,
        request_orca=arguments.request_orca,
        hash_secret=_read(secret, "--hash-secret-file").strip()[:64] if secret else b"",
    )
    uvloop.run(serve(options))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    settings = load(_text(arguments.config, "CONFIG"))
    print(dump(settings.effective), end="")
    print(complaint(settings.tokens), end="", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="epp", description="Pick the pod whose KV cache is already warm for a prompt."
    )
    parser.add_argument("--version", action="version", version=f"warmpick {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    serve_parser = commands.add_parser(
        "serve", help="run the endpoint picker (Envoy ext_proc)", description=_serve_text
    )
    _add_serve(serve_parser)
    serve_parser.set_defaults(run=_serve)
    check_parser = commands.add_parser(
        "check",
        help="validate a configuration and print the effective one",
        description="Validate an EndpointPickerConfig; print it with everything left out put in.",
    )
    check_parser.add_argument("config", type=Path, metavar="CONFIG", help="the file (YAML)")
    check_parser.set_defaults(run=_check)
    _add_demo(commands.add_parser("demo", help="Envoy, model servers and the picker on loopback"))
    return parser


_serve_text = """Run the endpoint picker. Envoy, or any gateway that speaks ext_proc, asks it where
each inference request should go. Try it: epp serve --endpoints-file endpoints.yaml
--secure-serving=false"""


def _add_demo(parser: argparse.ArgumentParser) -> None:
    from epp.demo.command import add_arguments, run  # noqa: PLC0415 (its libraries are an extra)

    add_arguments(parser)
    parser.set_defaults(run=run)


def main(argv: list[str] | None = None) -> int:
    """Run a command; return its exit code: 0, or 2 where it cannot be used as asked."""
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except ConfigError as error:
        print(f"epp: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.close(sys.stdout.fileno())
        return 0
