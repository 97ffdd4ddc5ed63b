"""Settings of the test run as a whole, and what it says at its end."""

import gc
import os
import sys
from zlib import crc32

import pytest
import structlog
import uvloop
from _pytest.runner import runtestprotocol
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

# Drawn with every local, as structlog does where there is rich, a traceback takes seconds.
structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback

GARBAGE = 20_000
"""Objects between two looks for cycles: Python's 700 takes an eighth of the time of a model."""
LISTED = 0.005
"""Seconds from which `--durations` lists a phase of a test."""


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


def pytest_collection_modifyitems(config, items):
    """Mix files that wait for servers with those that compute, lest all workers wait at once."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: crc32(item.nodeid.partition("::")[0].encode()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Have xdist's workers report what is shown of a test: six messages of each cost a lot."""
    if not hasattr(item.config, "workerinput"):
        return None
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    # What mypyc compiles leaves an error behind as handled if `except`, `finally` or `async with`
    # wait while it passes: each later one would hold it, as its context.
    assert sys.exception() is None, f"{item.nodeid} left {sys.exception()!r} as handled"
    for report in reports:
        if report.when == "call" or not report.passed or report.duration >= LISTED:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_terminal_summary(terminalreporter):
    """Say loudly which compiled modules were tested, and of which only the sources."""
    terminalreporter.write_line(
        f"compiled and tested: {compiled.summary()}",
        yellow=bool(FAULTS),
        green=not FAULTS,
        bold=True,
    )
