"""Which kernels there are, and what is said where they are not."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from epp.native import KERNELS, OFF, fault, faults, summary
from tests.native.built import FAULTS

ROOT = Path(__file__).parents[2]
PROBE = """
import epp.native, epp.adapters.extproc.transports as transports
print(epp.native.summary(), epp.native.fault("http2"), transports.native_fault(), sep="|")
"""


def test_off_leaves_nothing_to_import():
    environment = os.environ | {"WARMPICK_NATIVE": "off"}
    asked = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    assert asked.stdout.strip().split("|") == [f"none: {OFF}", OFF, OFF]


def test_a_kernel_that_is_not_there():
    assert fault("nothing") in {"not built", OFF}


def libraries():
    """Read the table in setup.py."""
    parsed = ast.parse((ROOT / "setup.py").read_text())
    (table,) = (
        each.value for each in parsed.body if isinstance(each, ast.AnnAssign) and each.value
    )
    return ast.literal_eval(table)


def test_what_is_built_is_what_is_listed():
    assert set(libraries()) == {kernel.name for kernel in KERNELS}


@pytest.mark.parametrize("kernel", libraries())
def test_every_kernel_has_its_source_and_what_it_promises(kernel):
    for ending in ("pyx", "pyi"):
        assert (ROOT / f"epp/native/{kernel}.{ending}").exists()


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_has_a_twin(kernel):
    assert importlib.import_module(kernel.twin).__doc__


def test_the_summary_names_every_kernel_once():
    said = summary()
    named = [name for name in faults() if said.count(name) == 1]
    assert named == list(faults()) or said == f"none: {OFF}"
    assert ("compiled" in said) == (len(FAULTS) < len(KERNELS))
