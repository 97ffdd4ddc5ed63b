"""Pages of the reference that are made from the code: all flags, all metrics."""

import argparse
import html
import importlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

from model_server.command import parser as launcher
from model_server.simulator.cli import parser as simulator

import epp
from epp.adapters.telemetry.series import Family
from epp.cli.main import all_parsers

_PACKAGE: Final = Path(epp.__file__).parent
_FLAGS: Final = """# Flags

Every flag of every command, as `--help` has it: this page is made from the parsers when the site
is built.
"""
_METRICS: Final = """# Metrics

Every series that the picker exports on its metrics port, at `/metrics`: this page is made from
the code when the site is built. A histogram has `_bucket`, `_sum` and `_count`. A deprecated name
is exported beside the one that replaces it; those that begin with `inference_extension_` or
`llm_d_inference_scheduler_` only with `--former-metrics`. `process_*` and `python_info` are those
of the Prometheus client. What bounds the labels: [metrics on Kubernetes](kubernetes.md#metrics).
What to look at first: [troubleshooting](troubleshoot.md).
"""
_BEGINNINGS: Final = {
    "warmpick_": "Warmpick's own",
    "llm_d_epp_": "llm-d-router's",
}
"""How names begin, and the headings under which they stand."""


def flags_page() -> str:
    """Return the page of flags, as Markdown."""
    commands = {
        **all_parsers(),
        "python -m model_server.launch": launcher(""),
        "python -m model_server.simulator": simulator(),
    }
    sections = chain.from_iterable(_command(name, each) for name, each in commands.items())
    return "\n".join([_FLAGS, *sections])


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## `{name}`\n"
    yield f"{_plain(parser.description or '')}\n"
    # An argparse action says nothing of itself in public but its attributes.
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        actions = [each for each in group._group_actions if each.help != argparse.SUPPRESS]
        nested = [each for each in actions if isinstance(each, argparse._SubParsersAction)]
        rows = [
            (_spelt(each, formatter), _plain(formatter._expand_help(each) if each.help else ""))
            for each in actions
            if each not in nested and "--help" not in each.option_strings
        ]
        if rows:
            title = (group.title or "").capitalize()
            yield from _table((title, ""), rows)
        for each in nested:
            for word, below in each.choices.items():
                yield from _command(f"{name} {word}", below)


def _spelt(action: argparse.Action, formatter: argparse.HelpFormatter) -> str:
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return f"`{names}`"
    default = action.dest.upper() if action.option_strings else action.dest
    value = formatter._format_args(action, str(action.metavar or default))
    return f"`{names} {value}`" if names else f"`{value}`"


def metrics_page() -> str:
    """Return the page of metrics, as Markdown."""
    text = [_METRICS]
    every = sorted(families(), key=lambda each: each.name)
    for beginning, heading in _BEGINNINGS.items():
        rows = [_row(each) for each in every if each.name.startswith(beginning)]
        text += [f"## {heading}\n", *_table(("name", "kind", "what"), rows)]
    return "\n".join(text)


def families() -> set[Family]:
    """Return every family of metrics that a module of the picker defines."""
    found: set[Family] = set()
    for path in sorted(_PACKAGE.rglob("*.py")):
        if "telemetry.series import" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts)
            found |= set(_families_in(vars(importlib.import_module(name)).values()))
    return found


def _families_in(values: Iterable[object]) -> Iterator[Family]:
    for value in values:
        if isinstance(value, Family):
            yield value
        elif isinstance(value, tuple | list):
            yield from _families_in(value)
        elif isinstance(value, Mapping):
            yield from _families_in(value.values())


def _row(family: Family) -> tuple[str, ...]:
    text = _plain(family.help)
    if family.labels:
        text += f" By {', '.join(f'`{each}`' for each in family.labels)}."
    if family.alias is not None:
        text += f" Deprecated name: `{family.alias.name}`."
    return f"`{family.name}`", family.kind, text


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(row)} |"
    yield ""


def _plain(text: str) -> str:
    """Return text as Markdown that shows it as it is, also in a table."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"&#{ord(each)};" if each in "|*_`[" else each for each in escaped)
