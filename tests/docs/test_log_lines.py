"""The troubleshooting page explains every warning and error that the product logs."""

import ast
import re

from docs.site.pages import ROOT
from epp.adapters.scrape.failures import EVENTS

EVENT = re.compile(r"[a-z_]+\.[a-z_]+|fault")
LOGGED = {"warning", "error", "exception", "warn_once", "_warn_once", "_report", "_on_failure"}
"""What is called with an event that is not only information."""
LINES = (ROOT / "docs" / "troubleshoot.md").read_text().partition("\n## Lines of the log\n")[2]
MODULES = [
    path
    for path in sorted((ROOT / "epp").rglob("*.py"))
    if path.relative_to(ROOT).parts[1] not in {"demo", "replay", "up"}
]


def constants(module):
    """Texts of a module that have a name."""
    return {
        target.id: each.value.value
        for each in module.body
        if isinstance(each, ast.Assign | ast.AnnAssign) and isinstance(each.value, ast.Constant)
        for target in (each.targets if isinstance(each, ast.Assign) else (each.target,))
        if isinstance(target, ast.Name)
    }


def events(path):
    """The events that a module logs as warnings or errors."""
    module = ast.parse(path.read_text())
    named = constants(module)
    for call in ast.walk(module):
        if not isinstance(call, ast.Call):
            continue
        called = call.func.attr if isinstance(call.func, ast.Attribute) else None
        if called not in LOGGED:
            continue
        for each in call.args[:1]:
            text = named.get(each.id) if isinstance(each, ast.Name) else None
            text = each.value if isinstance(each, ast.Constant) else text
            if isinstance(text, str) and EVENT.fullmatch(text):
                yield text


def test_each_line_of_the_log_is_explained():
    logged = {event for path in MODULES for event in events(path)} | set(EVENTS.values())
    assert len(logged) > 50
    assert not sorted(event for event in logged if f"`{event}`" not in LINES)


def test_only_lines_that_exist_are_explained():
    sources = "\n".join(path.read_text() for path in MODULES)
    rows = re.findall(r"^\| (`.*?) \|", LINES, re.MULTILINE)
    explained = re.findall(r"`([a-z_]+)\.([a-z_]+)`", "\n".join(rows))
    assert len(explained) > 50
    for area, event in explained:
        assert f"{area}.{event}" in sources or f'("{event}"' in sources  # `kv_events.{kind}`
