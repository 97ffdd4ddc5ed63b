"""The launcher as a process, with a stand-in for vLLM that has the same outside."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from model_server.engine import Engine, reserve_port

STAND_IN = Path(__file__).with_name("stand_in_engine.py")
DRIVER = f"""
import asyncio, sys
from model_server.launch import parse, run
sys.exit(asyncio.run(run(parse(sys.argv[1:]), (sys.executable, {str(STAND_IN)!r}))))
"""
DEADLINE_SECONDS = 30


class Launcher:
    """One launcher with its stand-in engine; stopped and reaped at the end of the test."""

    def __init__(self, log, behaviour, *flags):
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, behaviour, "--log-file", log, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def listening(self):
        return json.loads(self.process.stdout.readline())

    def log_says(self, text):
        eventually(lambda: self.log.exists() and text in self.log.read_text())

    def engine(self):
        """The engine and its child, once the child is there."""
        self.log_says("child")
        (engine,) = psutil.Process(self.process.pid).children()
        return [engine, *engine.children(recursive=True)]

    def end(self):
        output, errors = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, output, errors


def eventually(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def gone(processes):
    return all(not p.is_running() or p.status() == psutil.STATUS_ZOMBIE for p in processes)


@pytest.fixture
def launch(tmp_path):
    started = []

    def start(behaviour, *flags):
        started.append(Launcher(tmp_path / "engine.log", behaviour, *flags))
        return started[-1]

    yield start
    for launcher in started:
        if launcher.process.poll() is None:
            launcher.process.kill()
        launcher.process.communicate()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_everything(launch, number, status):
    launcher = launch("serves")
    line = launcher.listening()
    assert line == {"event": "listening", "host": "127.0.0.1", "port": line["port"]}
    processes = launcher.engine()
    assert len(processes) == 2
    launcher.process.send_signal(number)
    assert launcher.end() == (status, "", "")
    eventually(lambda: gone(processes))


def test_a_signal_before_the_engine_is_healthy_ends_everything(launch):
    launcher = launch("never-healthy")
    processes = launcher.engine()
    launcher.process.terminate()
    assert launcher.end() == (0, "", "")
    eventually(lambda: gone(processes))


async def test_an_engine_that_ignores_sigterm_is_killed_within_the_bound(tmp_path):
    with reserve_port("127.0.0.1", 0) as reserved:
        arguments = ["--host", "127.0.0.1", "--port", str(reserved.getsockname()[1])]
        command = [sys.executable, str(STAND_IN), "stubborn", *arguments]
        engine = await Engine.start(command, {}, tmp_path / "engine.log")
        await engine.healthy(f"127.0.0.1:{reserved.getsockname()[1]}")
    processes = psutil.Process(engine.process.pid).children()
    assert not await engine.stop(0.2)
    assert engine.process.returncode == -signal.SIGKILL
    eventually(lambda: gone(processes))


def test_an_engine_that_dies_at_start_is_reported_with_its_last_lines(launch):
    status, output, errors = launch("dies").end()
    assert (status, output) == (1, "")
    assert "vLLM ended by itself with status 7; the end of" in errors
    assert "the stand-in says hello" in errors


def test_an_engine_that_dies_later_takes_the_launcher_and_its_children_with_it(launch):
    launcher = launch("dies-later")
    launcher.listening()
    status, _, errors = launcher.end()
    assert status == 1
    assert "vLLM ended by itself with status 8" in errors
    child = int(launcher.log.read_text().split("child ")[1].split()[0])
    eventually(lambda: not psutil.pid_exists(child) or gone([psutil.Process(child)]))


def test_a_start_that_takes_too_long_is_given_up(launch):
    launcher = launch("never-healthy", "--start-seconds", "1.5")
    processes = launcher.engine()
    status, output, errors = launcher.end()
    assert (status, output) == (1, "")
    assert "vLLM is not healthy after 1.5 s" in errors
    eventually(lambda: gone(processes))


def test_the_engine_does_not_outlive_a_killed_launcher(launch):
    launcher = launch("serves")
    launcher.listening()
    engine = launcher.engine()[0]
    launcher.process.kill()
    eventually(lambda: gone([engine]))


def test_a_taken_port_is_said_at_once(launch):
    port = launch("serves").listening()["port"]
    status, output, errors = launch("serves", "--port", str(port)).end()
    assert (status, output) == (1, "")
    assert "cannot start" in errors
    assert "in use" in errors


@pytest.mark.parametrize("module", ["launch", "tiny_model"])
def test_without_vllm_one_line_says_how_to_get_it(module, tmp_path):
    # None in sys.modules is how Python marks a module that cannot be imported.
    program = (
        "import sys; sys.modules['vllm'] = None;"
        f"from model_server.{module} import main; sys.exit(main([{str(tmp_path / 'm')!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "make vllm" in done.stderr
    assert "PyTorch's CPU wheel index" in done.stderr
