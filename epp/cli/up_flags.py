"""The flags of `epp up`, with the names of `epp serve` for those that it has too."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from epp.cli.configuration import policy_name, settings_of
from epp.cli.go_arguments import GoArgumentParser
from epp.cli.observer_flags import add_observers, flags_of
from epp.cli.serve_flags import WHICH, add_max_body_bytes, add_policy
from epp.cli.types import FILE, INTERVAL, PORT, TIME
from epp.config.file import Settings
from epp.errors import ConfigError
from epp.up.options import UpOptions
from epp.up.servers import ModelServer, any_https, model_servers

_DESCRIPTION = """\
Put one port in front of model servers: Envoy takes requests in, and the picker chooses the server
whose cache is warm for each prompt. It needs no cluster and no configuration:

  epp up http://10.0.0.11:8000 http://10.0.0.12:8000

Servers that are down get no requests until they are back; names are resolved again every 5
seconds. If the picker fails, it is restarted, and meanwhile servers take turns. Clients' headers,
including API keys, are passed on unchanged. Needs Envoy: pip install 'warmpick[up]'.

Exit status: 0 after a drain; 1 if something did not start; 2 if an option, or a file that it names,
cannot be used; 3 if Envoy is missing; 129, 130 or 143 if stopped without a drain."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def add_up(parser: GoArgumentParser) -> None:
    """Add every flag of `epp up`."""
    parser.words_go_to = "urls"
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_servers(parser)
    _add_clients(parser.add_argument_group("clients"))
    add_policy(parser)
    _add_behaviour(parser.add_argument_group("behaviour"))
    add_observers(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    options = up_options(arguments, settings_of(arguments), os.environ)
    from epp.up.command import run  # noqa: PLC0415 (slow, and options may be refused)

    return run(options)


def _add_servers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model servers")
    group.add_argument(
        "urls",
        nargs="*",
        default=[],
        metavar="URL",
        help="http://HOST:PORT or https://HOST:PORT of a server; all addresses of a name are used",
    )
    group.add_argument(
        "--worker-urls",
        nargs="+",
        default=[],
        action="extend",
        metavar="URL",
        help="the same, named as in vllm-router and smg",
    )
    group.add_argument(
        "--endpoints-file",
        **FILE,
        help="instead of URLs: endpoints: [{name, address, port, labels}] as YAML; followed for"
        " changes",
    )
    group.add_argument(
        "--upstream-api-key-env",
        default="",
        metavar="NAME",
        help="the environment variable with the servers' API key, which replaces the one that the"
        " client sent",
    )
    group.add_argument(
        "--upstream-ca-file",
        **FILE,
        help="authorities (PEM) that certificates of https servers are checked against"
        " (default: the system's)",
    )
    group.add_argument(
        "--insecure-upstream", action="store_true", help="accept any certificate of https servers"
    )


def _add_clients(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="HOST",
        help="where clients connect (default: %(default)s, this machine only; 0.0.0.0: everyone)",
    )
    group.add_argument(
        "--port", **PORT, default=8080, help="(default: %(default)s; 0: any free one)"
    )
    group.add_argument(
        "--tls-cert",
        "--ssl-certfile",
        **FILE,
        help="serve https with this chain (PEM); followed for changes",
    )
    group.add_argument("--tls-key", "--ssl-keyfile", **FILE, help="its private key (PEM)")
    group.add_argument(
        "--metrics-port",
        **PORT,
        default=0,
        help="/metrics, /healthz and /readyz on 127.0.0.1 (default: a free one)",
    )


def _add_behaviour(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--drain-timeout",
        **TIME,
        default=30.0,
        help="after Ctrl-C or SIGTERM, how long open responses may take to end (default: 30s)",
    )
    group.add_argument(
        "--scrape-interval",
        **INTERVAL,
        default=1.0,
        help="how often each server's /metrics is read (default: 1s)",
    )
    group.add_argument(
        "--observe-responses",
        **WHICH,
        help="streamed responses to watch to the end: all, first (chunk of each), sample:1/N, or"
        " auto: those that teach something (default: auto)",
    )
    add_max_body_bytes(group)
    group.add_argument(
        "--debug-headers",
        action="store_true",  # a boolean that takes a value would take the URL behind it
        help="write the decision into the response header x-warmpick-decision",
    )
    group.add_argument(
        "--log-level",
        default="warning",
        choices=("debug", "info", "warning", "error"),
        help="lowest level to log; no line has a prompt or a key (default: warning)",
    )


def up_options(
    arguments: argparse.Namespace, settings: Settings, environ: Mapping[str, str]
) -> UpOptions:
    """Return the options that the flags ask for. Raises `ConfigError` for invalid combinations."""
    urls = [*arguments.urls, *arguments.worker_urls]
    path = arguments.endpoints_file or (
        Path(settings.endpoints_file) if settings.endpoints_file and not urls else None
    )
    if urls and path:
        raise ConfigError("give only one of these", "--endpoints-file and URLs")
    if not urls and not path:
        raise ConfigError(
            "no model servers: give URLs, as in `epp up http://10.0.0.11:8000`, or --endpoints-file"
        )
    servers = model_servers(urls)
    _check_tls(arguments, servers)
    return UpOptions(
        servers=servers,
        endpoints_path=path.absolute() if path else None,
        endpoints_setting="--endpoints-file" if arguments.endpoints_file else "file-discovery",
        host=arguments.host,
        port=arguments.port,
        metrics_port=arguments.metrics_port,
        policy=policy_name(arguments),
        picker_flags=tuple(_picker_flags(arguments)),
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        ca_file=arguments.upstream_ca_file,
        insecure_upstream=arguments.insecure_upstream,
        api_key_env=_variable(arguments.upstream_api_key_env, environ),
        drain_timeout=arguments.drain_timeout,
        log_level=arguments.log_level,
    )


def _check_tls(arguments: argparse.Namespace, servers: Sequence[ModelServer]) -> None:
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        given, missing = "--tls-cert", "--tls-key"
        if arguments.tls_cert is None:
            given, missing = missing, given
        raise ConfigError(f"it requires {missing}", given)
    if arguments.upstream_ca_file and arguments.insecure_upstream:
        raise ConfigError("give only one of these", "--upstream-ca-file and --insecure-upstream")
    for flag, given in (
        ("--upstream-ca-file", arguments.upstream_ca_file),
        ("--insecure-upstream", arguments.insecure_upstream),
    ):
        if given and not any_https(servers):
            raise ConfigError("it has no effect, because no server uses https", flag)


def _variable(name: str, environ: Mapping[str, str]) -> str:
    """Return the name of an environment variable that has a key; no error contains the key."""
    if not name:
        return ""
    flag = "--upstream-api-key-env"
    if not _VARIABLE.fullmatch(name):
        raise ConfigError(
            "this is not the name of an environment variable; the key is its value", flag
        )
    key = environ.get(name, "")
    if not key:
        raise ConfigError(f"the environment variable {name} is empty or not set", flag)
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"the value of {name} is not an API key: write visible ASCII characters", flag
        )
    return name


def _picker_flags(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of `epp serve` with the same meaning."""
    if arguments.config_file is not None:
        policy = [f"--config-file={arguments.config_file.absolute()}"]
    elif arguments.config_text is not None:
        policy = [f"--config-text={arguments.config_text}"]
    else:
        policy = [f"--policy={policy_name(arguments)}", "--poll-models"]
    return [
        *policy,
        *(f"--feature-gates={gate}" for gate in arguments.feature_gates),
        f"--scrape-interval={arguments.scrape_interval:.9f}",
        f"--observe-responses={arguments.observe_responses}",
        f"--max-body-bytes={arguments.max_body_bytes}",
        f"--debug-headers={str(arguments.debug_headers).lower()}",
        *flags_of(arguments),
        "--drain-timeout=0",
    ]
