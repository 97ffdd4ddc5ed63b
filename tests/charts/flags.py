"""The flags that the chart takes, which are those of `epp serve`.

`python -m tests.charts.flags` writes them into the chart.
"""

import json
import re

from epp.cli import types
from epp.cli.go_arguments import GoArgumentParser
from epp.cli.llm_d_router_flags import REMOVED
from epp.cli.serve_flags import add_serve
from tests.charts.helm import CHARTS

FILE = CHARTS / "warmpick" / "files" / "flags.yaml"
SCHEMA = CHARTS / "warmpick" / "values.schema.json"
_HEAD = """\
# The flags of `epp serve`, each with what its value has to be; empty: anything.
# Written by `python -m tests.charts.flags`, from the command's own table.
"""
_NUMBER = ("a number", "[0-9]+")
# epp.quantities.seconds, and plain seconds.
_DURATION = (
    "a duration, such as 500ms or 1m30s",
    r"[0-9]+(\.[0-9]+)?|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+",
)
_KINDS = {
    types.boolean: ("true or false", "(?i)(true|1|t|yes|false|0|f|no)"),
    types.port_number: _NUMBER,
    types.count: _NUMBER,
    types.verbosity: ("a whole number", "-?[0-9]+"),
    types.duration: _DURATION,
    types.interval: _DURATION,
    types.refresh_interval: _DURATION,
    types.size: ("a size, such as 65536 or 16Mi", "[0-9]+(K|M|G|Ki|Mi|Gi)?"),
}


def parser():
    """The parser of `epp serve`."""
    made = GoArgumentParser(prog="epp serve")
    add_serve(made)
    return made


def flags():
    """What the value of each flag has to be, in words and as a pattern, by the flag's name."""
    return {
        name.removeprefix("--"): _kind(name, action)
        for action in parser()._actions
        for name in action.option_strings
        if name.startswith("--") and name != "--help"
    }


def _kind(name, action):
    if name in REMOVED:
        return REMOVED[name][0], re.escape(REMOVED[name][0])
    if action.choices is not None:
        return f"one of {', '.join(action.choices)}", "|".join(action.choices)
    return _KINDS.get(action.type, ("", ""))


def text():
    """What the chart's file says."""
    found = sorted(flags().items())
    kinds = sorted({kind for _, kind in found if kind[0]})
    lines = ["kinds:", *(f"  '{words}': '{pattern}'" for words, pattern in kinds)]
    lines += ["flags:", *(f"  {name}: '{words}'" for name, (words, _) in found)]
    return _HEAD + "\n".join(lines) + "\n"


def schema():
    """The schema of the chart's values with these flags, whose names Helm looks at first.

    Names in another spelling are for the template that reads `FILE`.
    """
    whole = json.loads(SCHEMA.read_text())
    named = whole["definitions"]["flags"]
    named["properties"] = dict.fromkeys(sorted(flags()), True)
    return json.dumps(whole, indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
    SCHEMA.write_text(schema())
