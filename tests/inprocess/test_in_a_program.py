"""A picker in the program that opened it: its process, its event loop and its logs."""

import asyncio
import pickle
import subprocess
import sys

import pytest

from epp.inprocess import open_picker
from tests.inprocess.simulators import COMPLETIONS, IDS


async def test_an_error_in_the_block_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError):
        async with open_picker():
            raise ZeroDivisionError


async def test_a_picker_is_of_the_loop_that_opened_it():
    async with open_picker("127.0.0.1:9") as picker:

        async def elsewhere():
            entered = picker.pick(IDS).__aenter__()
            for called in (entered, picker.set_endpoints([]), picker.close()):
                with pytest.raises(RuntimeError, match="opened on another event loop"):
                    await called

        await asyncio.to_thread(asyncio.run, elsewhere())
        async with picker.pick(IDS, path=COMPLETIONS) as pick:
            assert pick.url == "http://127.0.0.1:9/v1/completions"


def test_a_picker_stays_in_its_process():
    with pytest.raises(TypeError, match="open one in the process that picks"):
        pickle.dumps(open_picker("127.0.0.1:9"))


PROGRAM = """
import asyncio, gc, logging, signal, sys, threading
import structlog
from epp.inprocess import open_picker

def process():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    loggers = logging.root.handlers, logging.root.level
    logs = loggers, structlog.is_configured()
    return handlers, logs, gc.isenabled(), gc.get_freeze_count(), sys.getswitchinterval()

async def main():
    before = process()
    async with open_picker(["127.0.0.1:9"]) as picker:
        assert process() == before
        async with picker.pick({"model": "m", "prompt": [1, 2]}, path="/v1/completions") as pick:
            print(pick.url)
        async with picker.pick({"model": "m", "prompt": "x"}, path="/v1/completions"):
            pass
        try:
            async with picker.pick(b"{"):
                pass
        except Exception as error:
            print(type(error).__name__)
    assert process() == before
    assert len(asyncio.all_tasks()) == 1

asyncio.run(main())
print([each.name for each in threading.enumerate()])
"""


STRICT = (
    *("-W", "error"),
    # As in pyproject.toml: mypyc calls it, and Python deprecates it from 3.12 on.
    *("-W", "ignore:the (type, exc, tb) signature of throw:DeprecationWarning"),
)


def ran(program):
    return subprocess.run(
        [sys.executable, *STRICT, "-c", program], capture_output=True, text=True, check=True
    )


def test_it_leaves_the_process_as_it_is():
    said = ran(PROGRAM)
    assert said.stdout.splitlines() == [
        "http://127.0.0.1:9/v1/completions",
        "MalformedRequest",
        "['MainThread']",
    ]
    (line,) = said.stderr.splitlines()
    assert line.startswith("endpoint.unreachable endpoint='default/127.0.0.1:9' error=")


def test_it_logs_as_the_program_has_configured_structlog():
    own = "structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stdout))"
    program = PROGRAM.replace("def process", f"{own}\n\ndef process", 1)
    said = ran(program)
    (line,) = (each for each in said.stdout.splitlines() if "endpoint.unreachable" in each)
    assert "warning" in line
    assert said.stderr == ""


def test_it_logs_to_the_standard_library_with_levels_and_tracebacks():
    program = """
import logging, sys
from epp.system.logs import Log
logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO)
log = Log("epp.app.jobs")
log.debug("endpoint.polled", endpoint="a")
log.info("endpoint.recovered", endpoint="a", share="100%")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("scrape.fault", url="http://a")
"""
    said = ran(program)
    lines = said.stderr.splitlines()
    assert lines[:2] == [
        "INFO epp.app.jobs: endpoint.recovered endpoint='a' share='100%'",
        "ERROR epp.app.jobs: scrape.fault url='http://a'",
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert said.stdout == ""
