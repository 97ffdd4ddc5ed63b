"""The command `epp`: its subcommands, and errors as one line on stderr."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TextIO

from msgspec.structs import replace

import epp.app.process  # before anything that imports structlog
from epp import __version__, compiled
from epp.cli.configuration import settings_of
from epp.cli.files import hash_secret, named, read_text
from epp.cli.go_arguments import GoArgumentParser, with_command
from epp.cli.llm_d_router_flags import check_removed, notices
from epp.cli.observer_flags import recording_of, shadow_of, tracing_of
from epp.cli.pool_flags import pool_notices, pool_of
from epp.cli.replica_flags import replica_notices, replicas_of
from epp.cli.serve_flags import add_serve, log_settings
from epp.cli.several_pools import parse, pools_of
from epp.cli.tls_flags import check_metrics_tls
from epp.config.file import load
from epp.config.report import report
from epp.config.schema import dump
from epp.errors import ConfigError, reason
from epp.printable import printable, printable_lines
from epp.system.logs import Log

if TYPE_CHECKING:  # see `_options`
    from epp.app.options import ServeOptions


def _serve(arguments: argparse.Namespace) -> int:
    with epp.app.process.uncollected():
        pools = pools_of(arguments)
        every = [_options(each) for each in pools]
        import structlog  # noqa: PLC0415 (see `_options`)
        import uvloop  # noqa: PLC0415 (see `_options`)

        from epp.adapters.telemetry.logs import configure_logs  # noqa: PLC0415
        from epp.app.pools import serve  # noqa: PLC0415

    with_workers = any(each.workers > 1 for each in every)
    if with_workers:
        from epp.app.workers import unfit  # noqa: PLC0415

        unfit.check(every)
    configure_logs(*log_settings(arguments))
    if with_workers:
        from epp.adapters.workers.link import link_of  # noqa: PLC0415
        from epp.app.workers.worker import as_worker  # noqa: PLC0415

        link = link_of(os.environ)
        if link is not None:
            structlog.contextvars.bind_contextvars(worker=link.start.number)
            uvloop.run(serve([as_worker(every[0], link)]))
            return 0
    log = Log(__name__)
    given = [notices(flags, os.environ) for flags in pools]
    for flags, pool in zip(pools, every, strict=True):
        given.append(pool_notices(flags, pool.source))
        given.append(replica_notices(flags, pool.settings.redis_syncer))
    for notice in dict.fromkeys(chain.from_iterable(given)):
        log.info(notice.event, name=notice.name, reason=notice.why)
    if with_workers:
        from epp.app.workers import parent  # noqa: PLC0415

        return uvloop.run(parent.serve(every[0]))
    uvloop.run(serve(every))
    return 0


def _options(arguments: argparse.Namespace) -> "ServeOptions":
    check_removed(arguments)
    check_metrics_tls(arguments)
    settings = settings_of(arguments)
    pool = pool_of(arguments, settings.endpoints_file, os.environ)
    # Imported here so that `epp check` and `epp --help` do not wait for servers they do not run.
    from epp.app.options import ServeOptions  # noqa: PLC0415

    file = arguments.hash_secret_file
    secret = hash_secret(file) if file else b""
    return ServeOptions(
        settings=settings,
        source=pool.source,
        pool_name=pool.name,
        metrics_access=pool.metrics_access,
        bind_address=arguments.bind_address,
        grpc_port=arguments.grpc_port,
        health_port=arguments.grpc_health_port,
        metrics_port=arguments.metrics_port,
        secure=arguments.secure_serving,
        cert_path=arguments.cert_path,
        health_on_grpc_port=arguments.health_checking,
        transport=arguments.transport,
        tls_min_version=arguments.tls_min_version,
        tls_ciphers=":".join(arguments.tls_cipher_suites),
        metrics_cert_path=arguments.metrics_cert_dir,
        metrics_client_ca=arguments.metrics_client_ca_file,
        profiles=arguments.enable_pprof,
        max_body_bytes=arguments.max_body_bytes,
        max_receive_bytes=arguments.grpc_max_recv_msg_size,
        max_held_bytes=arguments.max_held_bytes,
        request_timeout=arguments.request_timeout,
        observation=arguments.observe_responses,
        eject_after=arguments.eject_after,
        flow=replace(
            settings.flow,
            holds=arguments.hold == "auto",
            most_seconds=arguments.hold_timeout,
            empty_seconds=arguments.hold_empty_timeout or settings.flow.empty_seconds,
        ),
        buffered_wait=arguments.gateway_message_timeout / 2,
        scrape_interval=arguments.scrape_interval,
        drain_timeout=arguments.drain_timeout,
        show_decision=arguments.debug_headers,
        emit_scores=arguments.emit_endpoint_scores,
        stream_metrics=arguments.enable_grpc_stream_metrics,
        former_metrics=arguments.former_metrics,
        fairness_ids=arguments.fairness_id_metric_label_limit,
        heed_subset=not arguments.disable_endpoint_subset_filter,
        request_orca=arguments.request_orca,
        hash_secret=secret,
        replicas=replicas_of(arguments, secret, settings.redis_syncer),
        workers=arguments.workers,
        recording=recording_of(arguments, pool.name, settings.base_model),
        tracing=tracing_of(arguments, os.environ, pool.name),
        shadow=shadow_of(arguments),
    )


def _check(arguments: argparse.Namespace) -> int:
    if arguments.native:
        return _check_native()
    text = read_text(arguments.config, "CONFIG", stdin=True)
    with named(str(arguments.config)):
        settings = load(text)
    print(printable_lines(dump(settings.effective)), end="")
    table = report(settings.effective, settings.plugins, gated=settings.flow.gate is not None)
    print(*map(printable, table), sep="\n")
    from epp.app.cache_sources import tokenizer_warning  # noqa: PLC0415 (see `_options`)

    for warning in filter(None, (*settings.warnings, tokenizer_warning(settings.tokens))):
        print(f"epp: warning: {printable(warning)}", file=sys.stderr)
    return 0


def _check_native() -> int:
    """Print what is compiled; return 1 if WARMPICK_REQUIRE_NATIVE=1 and something is not."""
    faults = {module: compiled.fault(module) for module in compiled.MODULES}
    width = max(map(len, faults)) + 1
    print(f"{'MODULE':{width}}COMPILER STATE")
    for module, compiler in compiled.MODULES.items():
        print(f"{module:{width}}{compiler:9}{faults[module] or 'compiled'}")
    from epp.adapters.extproc.transports import native_fault  # noqa: PLC0415 (see `_options`)

    unusable = native_fault()
    print(f"--transport native: {'served by grpcio, ' + unusable if unusable else 'available'}")
    return int(os.environ.get("WARMPICK_REQUIRE_NATIVE") == "1" and any(faults.values()))


_SERVE_TEXT = """Run the endpoint picker. Envoy, or any gateway that speaks ext_proc, asks it where
each inference request should go. The command may be left out: epp FLAGS. Try it: epp serve
--endpoints-file endpoints.yaml --secure-serving=false. Several pools: epp serve --pool-name a and
--pool-name b --grpc-port 9102 --grpc-health-port 9103 --metrics-port 9190; further pools inherit
the flags of the first. Exit status: 0 after a drain; 1 if something failed; 2 if an option, or a
file that it names, cannot be used; 130 or 143 if stopped without a drain."""


def _add_serve(parser: GoArgumentParser) -> None:
    parser.usage = "epp [serve] FLAGS [and FLAGS]..."
    parser.description = _SERVE_TEXT
    add_serve(parser)
    parser.set_defaults(run=_serve)


def _add_check(parser: GoArgumentParser) -> None:
    parser.description = (
        "Validate an EndpointPickerConfig; print it with every default written out, and what each"
        " plug-in and parameter does here. Exit status: 0 if it can be used, also with warnings on"
        " stderr; 2 if it cannot."
    )
    checked = parser.add_mutually_exclusive_group(required=True)
    checked.add_argument(
        "config", type=Path, nargs="?", metavar="CONFIG", help="the file (YAML); - is stdin"
    )
    checked.add_argument(
        "--native",
        action="store_true",
        help="say which modules are compiled, and why others are not",
    )
    parser.set_defaults(run=_check)


def _imported(name: str) -> Callable[[GoArgumentParser], None]:
    """Return the function `module:name`, which is imported when it is called."""

    def add(parser: GoArgumentParser) -> None:
        resolve_name(name)(parser)

    return add


_COMMANDS: Mapping[str, tuple[str, Callable[[GoArgumentParser], None]]] = {
    "serve": ("run the endpoint picker (Envoy ext_proc)", _add_serve),
    "check": ("validate a configuration and print the effective one", _add_check),
    "up": (
        "put one port in front of model servers, with Envoy and the picker",
        _imported("epp.cli.up_flags:add_up"),
    ),
    "replay": (
        "compare policies on recorded traffic, in front of simulated engines",
        _imported("epp.cli.replay_flags:add_replay"),
    ),
    "replicas": (
        "compare what several pickers know",
        _imported("epp.cli.replica_flags:add_replica_commands"),
    ),
    "explain": (
        "show why a running picker sent a request where it did",
        _imported("epp.cli.operators.explain:add_explain"),
    ),
    "top": (
        "show the endpoints of a running picker, live",
        _imported("epp.cli.operators.top:add_top"),
    ),
    "demo": (
        "try Envoy, model servers and the picker on this machine",
        _imported("epp.demo.command:add_arguments"),
    ),
}
"""What each command is for, and the function that adds its flags and sets `run`.

The function is called for the command that is used, so that no command waits for imports of others.
"""


def _parser() -> argparse.ArgumentParser:
    parser = GoArgumentParser(
        prog="epp", description="Pick the pod whose KV cache is already warm for a prompt."
    )
    parser.add_argument("--version", action="version", version=f"warmpick {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (purpose, add) in _COMMANDS.items():
        command = commands.add_parser(name, help=purpose)
        command.build = add
    parser.commands = commands.choices
    return parser


def all_parsers() -> dict[str, GoArgumentParser]:
    """Return the complete parser of each command, by the words that call it."""
    made: dict[str, GoArgumentParser] = {}
    for name, (_, add) in _COMMANDS.items():
        made[f"epp {name}"] = parser = GoArgumentParser(prog=f"epp {name}")
        add(parser)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0: success; 1: something failed while the command ran; 2: an option, or a file or another input
    that it names, cannot be used; 130: Ctrl-C.
    """
    arguments = parse(_parser(), with_command(sys.argv[1:] if argv is None else argv))
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        status = run(arguments)
        print(end="", flush=True)  # raises here, not at exit, if stdout cannot be written
    except ConfigError as error:
        print(f"epp: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        print(f"epp: {printable(place + reason(error))}", file=sys.stderr)
        return 1
    else:
        return status
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            _drop_unwritten(stream)


def _drop_unwritten(stream: TextIO) -> None:
    """Drop what cannot be written: Python would try again, and make the exit status 120."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
