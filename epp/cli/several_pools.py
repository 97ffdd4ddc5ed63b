"""Several pools on one command line: `epp serve FLAGS and FLAGS and FLAGS`.

Each pool has its own endpoints and ports. It inherits the first pool's value of any other flag
that it does not repeat.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise

from epp.cli.go_arguments import GoArgumentParser
from epp.cli.serve_flags import add_serve
from epp.errors import ConfigError

_SEPARATOR = "and"
_NOT_INHERITED = ("endpoints_file", "pool_name", "endpoint_selector", "endpoint_target_ports")
_POLICY_FLAGS = ("config_file", "config_text", "policy")
_LIST_FLAGS = ("feature_gates", "replicas", "tls_cipher_suites")
_LOG_FLAGS = ("log_level", "log_format", "zap_log_level", "zap_devel")
_PORT_FLAGS = ("grpc_port", "grpc_health_port", "metrics_port")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; `others` holds the arguments of the pools after the first."""
    if argv[:1] != ["serve"] or _SEPARATOR not in argv:
        return parser.parse_args(argv, argparse.Namespace(others=()))
    cuts = [place for place, word in enumerate(argv) if word == _SEPARATOR]
    parts = [argv[start + 1 : end] for start, end in pairwise((0, *cuts, len(argv)))]
    first = parser.parse_args(["serve", *parts[0]])
    first.others = tuple(_parse_further_pool(first, part) for part in parts[1:])
    return first


def _parse_further_pool(first: argparse.Namespace, part: Sequence[str]) -> argparse.Namespace:
    parser = GoArgumentParser(prog="epp serve ... and")
    add_serve(parser)
    part = parser.plain(part)
    given = vars(first) | dict.fromkeys(_NOT_INHERITED)
    repeated = {word.partition("=")[0] for word in part}
    if any(_flag(name) in repeated for name in _POLICY_FLAGS):
        given |= dict.fromkeys(_POLICY_FLAGS)
    for name in _LIST_FLAGS:  # argparse adds to what is there
        if _flag(name) in repeated:
            given[name] = []
    return parser.parse_args(part, argparse.Namespace(**given))


def pools_of(arguments: argparse.Namespace) -> list[argparse.Namespace]:
    """Return the arguments of each pool.

    Raises `ConfigError` if two have the same port, or another log.
    """
    pools = [arguments, *arguments.others]
    used: set[int] = set()
    for name in _PORT_FLAGS:
        for pool in pools:
            port: int = getattr(pool, name)
            if port and port in used:  # 0: any free one
                raise ConfigError(f"{port} is taken: each pool needs ports of its own", _flag(name))
            used.add(port)
    for name in _LOG_FLAGS:
        if any(getattr(pool, name) != getattr(arguments, name) for pool in pools):
            raise ConfigError("all pools have one log: write it before `and`", _flag(name))
    return pools


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
