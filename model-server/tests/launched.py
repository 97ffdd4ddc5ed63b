"""The launcher as a process with some engine in vLLM's place, and how to ask what it says."""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

DRIVER = """
import asyncio, sys
from model_server.launch import parse, run
sys.exit(asyncio.run(run(parse(sys.argv[2:]), (sys.executable, sys.argv[1]))))
"""
DEADLINE_SECONDS = 30
SIMULATED = Path(__file__).with_name("simulated_engine.py")
STAND_IN = Path(__file__).with_name("stand_in_engine.py")


class Launched:
    """A launcher before `engine`, a Python file; use it in a `with` statement."""

    def __init__(self, engine, *arguments, **variables):
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, engine, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables or None,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def listening(self):
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def engine(self):
        (engine,) = psutil.Process(self.process.pid).children()
        return engine

    def end(self):
        output, errors = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, output, errors


class BeforeStandIn(Launched):
    """A launcher before the stand-in, which behaves as it is told and writes to `log`."""

    def __init__(self, log, behaviour, *flags, **variables):
        super().__init__(STAND_IN, behaviour, "--log-file", log, *flags, **variables)
        self.log = log

    def family(self):
        """The engine and its child, once the child is there."""
        eventually(lambda: self.log.exists() and "child" in self.log.read_text())
        engine = self.engine()
        return [engine, *engine.children(recursive=True)]

    def child_gone(self):
        """Whether the engine's child does not run any more, or was never there."""
        numbers = re.findall(r"^child (\d+)$", self.log.read_text(), re.MULTILINE)
        return all(_gone(int(number)) for number in numbers)


def eventually(condition):
    """Wait until it holds, and give what it gave; other processes' state has to be asked for."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)
    return found


def all_gone(processes):
    """Whether none of these processes runs any more."""
    return all(_gone(each.pid) for each in processes)


def _gone(number):
    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it may end while it is looked at
        return True


def ask(port, path, body=None):
    """Status and body; status 0 where nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as response:  # noqa: S310 - http
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""
