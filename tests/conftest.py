"""Settings of the test run as a whole, and what it says at its end."""

import gc
import os

import pytest
import uvloop
from hypothesis import settings

from epp import compiled
from tests.hangups import hangups
from tests.kept_grpc import kept_grpc
from tests.native.built import FAULTS

__all__ = ["hangups", "kept_grpc"]  # what every test has, or may have

# Speed is measured in bench/, never in a test.
settings.register_profile("warmpick", deadline=None)
settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile(os.environ.get("WARMPICK_EXAMPLES", "warmpick"))

# No test asks a server of the world, and the certificates of those who vouch for them are many.
os.environ |= {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}

GARBAGE = 20_000
"""Objects between two looks for cycles: Python's 700 takes an eighth of the time of a model."""


def pytest_asyncio_loop_factories():
    """Run on the loop that the product runs on.

    The standard library's loses a connection that is accepted while its server closes (CPython
    issue 109564), which then fails whichever test runs when it is collected.
    """
    return {"uvloop": uvloop.new_event_loop}


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Freeze what thousands of tests are made of: each full collection would walk through it.

    What tests make dies without the collector but for cycles: it looks less often for them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE)
        gc.enable()


def pytest_terminal_summary(terminalreporter):
    """Say loudly which compiled modules were tested, and of which only the sources."""
    terminalreporter.write_line(
        f"compiled and tested: {compiled.summary()}",
        yellow=bool(FAULTS),
        green=not FAULTS,
        bold=True,
    )
