"""Which kernels there are to be tested. With WARMPICK_REQUIRE_NATIVE=1 all must be there."""

import importlib
import os

import pytest

from epp.native import faults

FAULTS = {name: why for name, why in faults().items() if why}
REQUIRED = os.environ.get("WARMPICK_REQUIRE_NATIVE") == "1"
FAULT = FAULTS.get("http2", "")
REASON = f"NOT TESTED: the native kernels: {FAULT}"
if FAULTS and REQUIRED:
    raise RuntimeError(f"native kernels are required, and these are not there: {FAULTS}")
needs_native = pytest.mark.skipif(bool(FAULT), reason=REASON)


def require_native():
    """Skip the rest of a module where HTTP/2 of our own is not there."""
    if FAULT:
        pytest.skip(REASON, allow_module_level=True)


def loaded(name, twin):
    """Return what is to be tested alike: a kernel where it is there, and the module of its twin."""
    return [twin] if name in FAULTS else [importlib.import_module(f"epp.native.{name}"), twin]
