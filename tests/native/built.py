"""Which modules are compiled, so that they can be tested beside their sources.

With WARMPICK_REQUIRE_NATIVE=1 all must be; with WARMPICK_REQUIRE_NATIVE=cython those need not be
that mypyc compiles.
"""

import importlib
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from epp import compiled

ROOT = Path(compiled.__file__).parents[1]
REQUIRED = os.environ.get("WARMPICK_REQUIRE_NATIVE", "")
FAULTS = {module: why for module in compiled.MODULES if (why := compiled.fault(module))}
MISSING = {
    module: why
    for module, why in FAULTS.items()
    if REQUIRED == "1" or (REQUIRED and compiled.MODULES[module] == REQUIRED)
}
if MISSING:
    raise RuntimeError(f"compiled modules are required, and these are not there: {MISSING}")


def source_of(module):
    """Return the source of a compiled module, loaded beside its extension under another name."""
    if module in FAULTS:
        return importlib.import_module(module)
    name = f"{module}_source"
    if name not in sys.modules:
        loader = SourceFileLoader(name, str(ROOT / compiled.path_of(module)))
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__file__ = loader.path
        loader.exec_module(sys.modules[name])
    return sys.modules[name]


def loaded(module):
    """Return what is to be tested alike: the extension, where it was built, and the source."""
    source = source_of(module)
    return [source] if module in FAULTS else [importlib.import_module(module), source]


def untested(module, what):
    """Say that something is not tested for want of an extension, and how to have it tested."""
    fault = FAULTS.get(module, "")
    how = "unset it" if fault == compiled.OFF else "`make native` builds it"
    return f"NOT TESTED: {what}: {fault}; {how}"


def needs(module, what):
    """Mark tests of what an extension alone does."""
    return pytest.mark.skipif(module in FAULTS, reason=untested(module, what))


SESSION = "epp.adapters.extproc.http2.session"
HTTP2 = "the transport with HTTP/2 of our own"
needs_native = needs(SESSION, HTTP2)


def require_native():
    """Skip the rest of a module where HTTP/2 of our own is not there."""
    if SESSION in FAULTS:
        pytest.skip(untested(SESSION, HTTP2), allow_module_level=True)
