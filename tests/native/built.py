"""Which kernels there are to be tested. With WARMPICK_REQUIRE_NATIVE=1 all must be there.

With WARMPICK_REQUIRE_NATIVE=kernels the modules that are compiled as they stand need not.
"""

import importlib
import os

import pytest

from epp import compiled
from epp.native import OFF, faults

FAULTS = {name: why for name, why in faults().items() if why}
REQUIRED = os.environ.get("WARMPICK_REQUIRE_NATIVE", "")
if FAULTS and REQUIRED:
    raise RuntimeError(f"native kernels are required, and these are not there: {FAULTS}")
if compiled.FAULT and REQUIRED == "1":
    raise RuntimeError(f"compiled modules are required, and are not in use: {compiled.FAULT}")


def untested(kernel, what):
    """Say that something is not tested for want of a kernel, and how to have it tested."""
    fault = FAULTS.get(kernel, "")
    how = "unset it" if fault == OFF else "`make native` builds it"
    return f"NOT TESTED: {what}: {fault}; {how}"


def needs(kernel, what):
    """Mark tests of what a kernel alone does."""
    return pytest.mark.skipif(kernel in FAULTS, reason=untested(kernel, what))


HTTP2 = "the transport with HTTP/2 of our own"
needs_native = needs("http2", HTTP2)


def require_native():
    """Skip the rest of a module where HTTP/2 of our own is not there."""
    if "http2" in FAULTS:
        pytest.skip(untested("http2", HTTP2), allow_module_level=True)


def loaded(name, twin):
    """Return what is to be tested alike: a kernel where it is there, and the module of its twin."""
    return [twin] if name in FAULTS else [importlib.import_module(f"epp.native.{name}"), twin]
