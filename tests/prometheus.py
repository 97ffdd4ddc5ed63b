"""Prometheus' programs, as `.ci/setup` or the machine has them, and what a picker exports."""

import functools
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from docs.site.reference import families
from epp.adapters.telemetry.families import CACHED_ERROR

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "prometheus" / "usr" / "bin"
KEPT = ROOT / ".cache" / "promtool"
"""A file for each question that promtool was content with, which takes seconds of CPU."""
TARGET_LABELS = {"namespace", "job", "instance"}
SELECTOR = re.compile(r"\b((?:warmpick_|llm_d_|process_)\w+)(?:\{([^}]*)\})?")
"""A name of a metric in a query, and what chooses among its series."""
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"')


def program(name):
    """Where `prometheus` or `promtool` is; skips, and says so, if it is nowhere."""
    found = shutil.which(name, path=os.pathsep.join((str(CACHE), os.environ["PATH"])))
    if found is None:
        pytest.skip(
            f"NOT TESTED: the charts' alerts and dashboards: there is no {name};"
            " `.ci/install-prometheus .cache` puts it there on Debian"
        )
    return found


def promtool(*words):
    """Run promtool on a file, beside others that it may name; give what it says of faults.

    What it was content with once is not asked again of the same program.
    """
    tool = Path(program("promtool"))
    made = tool.stat()
    asked = hashlib.sha256(f"{tool} {made.st_size} {made.st_mtime_ns} {words[:-1]}".encode())
    for path in sorted(words[-1].parent.iterdir()):
        text = path.read_bytes()
        asked.update(f"{path.name} {len(text)} ".encode() + text)
    content = KEPT / f"{words[-1].name}-{asked.hexdigest()}"
    if content.exists():
        return ""
    done = subprocess.run(
        [tool, *map(str, words)],
        env=os.environ | {"GOGC": "400"},  # its collector takes a quarter of its time else
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return done.stdout + done.stderr
    KEPT.mkdir(parents=True, exist_ok=True)
    content.touch()
    return ""


@functools.cache
def exported():
    """Every name of a sample that a picker exports, with its labels."""
    names = {
        each: set[str]() for each in ("process_cpu_seconds_total", "process_resident_memory_bytes")
    }
    for family in families():
        kinds = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        # OpenMetrics 1.0: no `_sum` and `_count` with negative buckets.
        kinds = kinds[:1] if family is CACHED_ERROR else kinds
        for kind in kinds:
            names[family.name + kind] = {*family.labels, *(["le"] if kind == "_bucket" else [])}
    return names


def selectors(query):
    """The metrics of a query, each with the labels that choose among its series."""
    return [(name, set(MATCHER.findall(chosen))) for name, chosen in SELECTOR.findall(query)]


def unknown(query):
    """What a query names that no picker exports: metrics, and labels of metrics."""
    return [
        (name, labels)
        for name, labels in selectors(query)
        if name not in exported() or labels - exported()[name] - TARGET_LABELS
    ]
