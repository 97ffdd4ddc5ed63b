"""Which kernels there are to be tested. With WARMPICK_REQUIRE_NATIVE=1 all must be there.

With WARMPICK_REQUIRE_NATIVE=kernels the modules that are compiled as they stand need not.
"""

import importlib
import os

import pytest

from epp import compiled
from epp.native import faults

FAULTS = {name: why for name, why in faults().items() if why}
REQUIRED = os.environ.get("WARMPICK_REQUIRE_NATIVE", "")
FAULT = FAULTS.get("http2", "")
REASON = f"NOT TESTED: the native kernels: {FAULT}"
if FAULTS and REQUIRED:
    raise RuntimeError(f"native kernels are required, and these are not there: {FAULTS}")
if compiled.FAULT and REQUIRED == "1":
    raise RuntimeError(f"compiled modules are required, and are not in use: {compiled.FAULT}")
needs_native = pytest.mark.skipif(bool(FAULT), reason=REASON)


def require_native():
    """Skip the rest of a module where HTTP/2 of our own is not there."""
    if FAULT:
        pytest.skip(REASON, allow_module_level=True)


def loaded(name, twin):
    """Return what is to be tested alike: a kernel where it is there, and the module of its twin."""
    return [twin] if name in FAULTS else [importlib.import_module(f"epp.native.{name}"), twin]
