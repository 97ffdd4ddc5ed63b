"""The machine in one line, so that a figure can be judged."""

import os
import platform
from pathlib import Path

import psutil

from epp import compiled


def describe() -> str:
    """Processor, cores, memory, kernel and Python, with the load average before the run."""
    memory = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0]
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}, load {load:.1f} at start"
    )


def uncompiled() -> str:
    """Return how many modules that are to be compiled are not; empty if all are.

    From source the picker takes several times as much.
    """
    missing = sum(bool(compiled.FAULT or compiled.fault(module)) for module in compiled.MODULES)
    return f"{missing} of {len(compiled.MODULES)} modules not compiled" if missing else ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
