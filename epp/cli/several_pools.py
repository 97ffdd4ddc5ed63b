"""Several pools on one command line: `epp serve FLAGS and FLAGS and FLAGS`.

Each has its own endpoints and ports; what else is not said again is as for the first.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise

from epp.cli.serve_flags import add_serve
from epp.errors import ConfigError

_AND = "and"
_OF_ONE_POOL = ("endpoints_file", "pool_name", "endpoint_selector", "endpoint_target_ports")
_POLICY = ("config_file", "config_text", "policy")
_PORTS = ("grpc_port", "grpc_health_port", "metrics_port")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line; the pools after the first are in `others`."""
    if argv[:1] != ["serve"] or _AND not in argv:
        return parser.parse_args(argv, argparse.Namespace(others=()))
    cuts = [place for place, word in enumerate(argv) if word == _AND]
    parts = [argv[start + 1 : end] for start, end in pairwise((0, *cuts, len(argv)))]
    first = parser.parse_args(["serve", *parts[0]])
    first.others = tuple(_another(first, part) for part in parts[1:])
    return first


def _another(first: argparse.Namespace, part: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="epp serve ... and")
    add_serve(parser)
    given = vars(first) | dict.fromkeys(_OF_ONE_POOL)
    if any(word.startswith(_flag(name)) for word in part for name in _POLICY):
        given |= dict.fromkeys(_POLICY)
    return parser.parse_args(part, argparse.Namespace(**given))


def pools_of(arguments: argparse.Namespace) -> list[argparse.Namespace]:
    """Give the flags of each pool. Raises `ConfigError` where two want one port."""
    pools = [arguments, *arguments.others]
    taken: set[int] = set()
    for name in _PORTS:
        for pool in pools:
            port: int = getattr(pool, name)
            if port and port in taken:  # 0 is any
                raise ConfigError(f"{port} is taken: each pool needs ports of its own", _flag(name))
            taken.add(port)
    return pools


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
