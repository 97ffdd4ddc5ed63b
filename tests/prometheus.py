"""Prometheus' programs, as `.ci/setup` or the machine has them, and what a picker exports."""

import functools
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
    """Run promtool; give what it says if it is not content."""
    done = subprocess.run(
        [program("promtool"), *map(str, words)],
        env=os.environ | {"GOGC": "400"},  # its collector takes a quarter of its time else
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


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
