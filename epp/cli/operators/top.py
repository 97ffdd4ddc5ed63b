"""`epp top`: the endpoints of a running picker, live."""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from epp.app.observing.fleet_view import EndpointsPage
from epp.app.observing.views import DecisionsPage, DecisionView
from epp.cli.operators.port import OperatorsPort, add_port
from epp.cli.types import INTERVAL
from epp.errors import ConfigError

_EXTRA: Final = "pip install 'warmpick[top]'"
_DECISIONS: Final = 100

TEXT: Final = """Show the endpoints of a running picker, refreshed every second: load, how full
their caches are, how much of the last minute's prompts the engines had cached and how well that was
predicted, trust, and speed. Keys: s and S sort by another column, r reverses the order, p pauses,
Enter shows one endpoint, q quits. Needs Textual: pip install 'warmpick[top]'."""


def add_top(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.description = TEXT
    parser.add_argument("--interval", **INTERVAL, default=1.0, help="(default: 1s)")
    add_port(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Show the endpoints until the user quits. Raises `ConfigError` if they cannot be read."""
    if find_spec("textual") is None:
        raise ConfigError(f"`epp top` requires Textual: {_EXTRA}")
    port = OperatorsPort(arguments)

    def read() -> EndpointsPage:
        return port.read("/debug/endpoints", EndpointsPage)

    def decisions() -> Sequence[DecisionView]:
        return port.read("/debug/decisions", DecisionsPage, limit=_DECISIONS).decisions

    read()  # so that what cannot be read is an error before the screen is taken
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # Textual draws on the latter
        raise ConfigError("`epp top` needs a terminal; GET /debug/endpoints has the same as JSON")
    from epp.cli.operators.top_screen import TopApp  # noqa: PLC0415 (an extra)

    TopApp(read, decisions, arguments.interval).run()
    return 0
