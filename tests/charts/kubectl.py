"""kubectl, where it is on PATH."""

import shutil

import pytest

KUBECTL = shutil.which("kubectl")


def needs_kubectl(what):
    """Mark tests that run it."""
    reason = f"NOT TESTED: {what}: there is no kubectl on PATH; install it"
    return pytest.mark.skipif(KUBECTL is None, reason=reason)
