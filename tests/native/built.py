"""Whether the kernels were built. With WARMPICK_REQUIRE_NATIVE=1 they must have been."""

import os

import pytest

from epp.adapters.extproc.transports import native_fault

FAULT = native_fault()
REASON = f"NOT TESTED: the native kernels were not built: {FAULT}"
if FAULT and os.environ.get("WARMPICK_REQUIRE_NATIVE") == "1":
    raise RuntimeError(REASON)
needs_native = pytest.mark.skipif(bool(FAULT), reason=REASON)


def require_native():
    """Skip the rest of a module where they were not."""
    if FAULT:
        pytest.skip(REASON, allow_module_level=True)
