"""The flags that the chart takes, which are those of `epp serve`.

`python -m tests.charts.flags` writes them into the chart.
"""

import json
import re

from epp.cli import types
from epp.cli.go_arguments import GoArgumentParser
from epp.cli.llm_d_router_flags import REMOVED
from epp.cli.serve_flags import add_serve
from epp.cli.tls_flags import _VERSIONS
from epp.config.file import GATES
from tests.charts.helm import CHARTS

FILE = CHARTS / "warmpick" / "files" / "flags.yaml"
SCHEMA = CHARTS / "warmpick" / "values.schema.json"
_WIDTH = 100
_HEAD = """\
# The flags of `epp serve`, each with what its value has to be; empty: anything.
# Written by `python -m tests.charts.flags`, from the command's own table.
"""
_NUMBER = ("a number", "[0-9]+")
_PORT = (
    "a port, 0 to 65535",
    "0*([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])",
)
# epp.quantities.seconds, and plain seconds.
_UNIT = "(ns|us|µs|ms|s|m|h)"
_PART = rf"([0-9]+(\.[0-9]*)?|\.[0-9]+){_UNIT}"
_SOME = rf"([0-9]*[1-9][0-9]*(\.[0-9]*)?|[0-9]*\.[0-9]*[1-9][0-9]*){_UNIT}"
_DURATION = (
    "a duration, such as 500ms or 1m30s",
    rf"[0-9]+(\.[0-9]+)?|({_PART})+",
)
_INTERVAL = (
    "a duration above 0, such as 500ms or 1m30s",
    r"[0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*" + f"|({_PART})*{_SOME}({_PART})*",
)
_QUANTITY = (
    "a size, such as 4194304, 16Mi or 25MB",
    r"|[0-9]+(\.[0-9]+)?(k|[KMGT]i?)?[Bb]?",
)
_KINDS = {
    types.boolean: ("true or false", "(?i)(true|1|t|yes|false|0|f|no)"),
    types.port_number: _PORT,
    types.count: _NUMBER,
    types.verbosity: ("a whole number", "-?[0-9]+"),
    types.zap_level: (
        "a level, such as info or 4",
        "(?i)(debug|info|warn|error|dpanic|panic|fatal|[0-9]+)",
    ),
    types.duration: _DURATION,
    types.interval: _INTERVAL,
    types.refresh_interval: _DURATION,
    types.size: ("a size, such as 65536 or 16Mi", "[0-9]+(K|M|G|Ki|Mi|Gi)?"),
}
_NAMED = {
    "--feature-gates": (
        f"{', '.join(GATES)} or NAME=false",
        rf"([\s,]*({'|'.join(GATES)})(=\s*(?i:true|t|1|false|f|0))?\s*(,|$))*[\s,]*",
    ),
    "--grpc-max-recv-msg-size": _QUANTITY,
    "--grpc-max-send-msg-size": _QUANTITY,
    "--model-server-metrics-scheme": ("http or https", "(?i)https?"),
    "--observe-responses": (
        "auto, all, first or sample:1/N",
        "auto|all|first|sample:1/0*[1-9][0-9]*",
    ),
    "--tls-min-version": (f"one of {', '.join(_VERSIONS)}", f"|{'|'.join(_VERSIONS)}"),
    "--workers": ("a number from 1 to 64", "0*([1-9]|[1-5][0-9]|6[0-4])"),
    "--zap-stacktrace-level": (
        "a level, such as error",
        "(?i)(debug|info|warn|error|dpanic|panic|fatal)",
    ),
    "--zap-time-encoding": (
        "an encoding of times, such as rfc3339",
        "(?i)(epoch|millis|nano|iso8601|rfc3339|rfc3339nano)",
    ),
}
"""What no type says by itself."""


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
        values, _ = REMOVED[name]
        more = "; for another engine, set modelServerType instead" * name.endswith("-metric")
        return values[0] + more, "|".join(map(re.escape, values))
    if action.choices is not None:
        return f"one of {', '.join(action.choices)}", "|".join(action.choices)
    return _NAMED.get(name) or _KINDS.get(action.type, ("", ""))


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
    return laid_out(whole) + "\n"


def laid_out(value, before=""):
    """JSON behind a text, which is an indent and a key, and on one line if that is short."""
    line = before + json.dumps(value)
    if len(line) < _WIDTH or not isinstance(value, dict | list):
        return line
    indent = " " * (len(before) - len(before.lstrip()))
    if isinstance(value, dict):
        parts = [laid_out(each, f"{indent}  {json.dumps(key)}: ") for key, each in value.items()]
        return f"{before}{{\n" + ",\n".join(parts) + f"\n{indent}}}"
    parts = [laid_out(each, f"{indent}  ") for each in value]
    return f"{before}[\n" + ",\n".join(parts) + f"\n{indent}]"


if __name__ == "__main__":
    FILE.write_text(text())
    SCHEMA.write_text(schema())
