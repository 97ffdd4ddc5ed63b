"""The launcher as a process, with a stand-in for vLLM that has the same outside."""

import contextlib
import signal
import subprocess
import sys

import psutil
import pytest
from model_server.engine import Engine, reserve_port
from model_server.launch import end_seconds, parse
from model_server.standing import Phase

from .launched import STAND_IN, BeforeStandIn, all_gone, ask, eventually


@pytest.fixture
def launch(tmp_path):
    """Start a launcher before a stand-in; it is stopped and reaped at the end of the test."""
    with contextlib.ExitStack() as started:

        def start(behaviour, *flags):
            return started.enter_context(BeforeStandIn(tmp_path / "engine.log", behaviour, *flags))

        yield start


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_everything(launch, number, status):
    launcher = launch("serves")
    line = launcher.listening()
    assert line == {"event": "listening", "host": "127.0.0.1", "port": line["port"]}
    processes = launcher.family()
    assert len(processes) == 2
    launcher.process.send_signal(number)
    assert launcher.end() == (status, "", "")
    eventually(lambda: all_gone(processes))


def test_a_signal_before_the_engine_is_healthy_ends_everything(launch):
    launcher = launch("never-healthy")
    processes = launcher.family()
    launcher.process.terminate()
    assert launcher.end() == (0, "", "")
    eventually(lambda: all_gone(processes))


async def test_an_engine_that_ignores_sigterm_is_killed_within_the_bound(tmp_path):
    with reserve_port("127.0.0.1", 0) as reserved:
        arguments = ["--host", "127.0.0.1", "--port", str(reserved.getsockname()[1])]
        command = [sys.executable, str(STAND_IN), "stubborn", *arguments]
        engine = await Engine.start(command, {}, tmp_path / "engine.log")
        await engine.healthy(f"http://127.0.0.1:{reserved.getsockname()[1]}")
    processes = psutil.Process(engine.process.pid).children()
    assert not await engine.stop(0.2)
    assert engine.process.returncode == -signal.SIGKILL
    eventually(lambda: all_gone(processes))


@pytest.mark.parametrize(
    ("phase", "seconds"), [(Phase.LOADING, 10), (Phase.SERVING, 70), (Phase.LEAVING, 70)]
)
def test_only_an_engine_that_has_served_gets_time_for_requests(phase, seconds):
    settings = parse(["m", "--drain-seconds", "60"]).settings
    assert end_seconds(settings, phase) == seconds


def test_an_engine_that_dies_at_start_is_reported_with_its_last_lines(launch):
    status, output, errors = launch("dies").end()
    assert (status, output) == (1, "")
    assert "vLLM ended by itself with status 7; the end of" in errors
    assert "the stand-in says hello" in errors


def test_an_engine_that_dies_later_takes_the_launcher_and_its_children_with_it(launch):
    launcher = launch("dies-later")
    ask(launcher.listening()["port"], "/")
    status, _, errors = launcher.end()
    assert status == 1
    assert "vLLM ended by itself with status 8" in errors
    eventually(launcher.child_gone)


def test_a_start_that_takes_too_long_is_given_up(launch):
    launcher = launch("never-healthy", "--start-seconds", "4.5")
    status, output, errors = launcher.end()
    assert (status, output) == (1, "")
    assert "vLLM is not healthy after 4.5 s" in errors
    eventually(launcher.child_gone)


def test_the_engine_does_not_outlive_a_killed_launcher(launch):
    launcher = launch("serves")
    launcher.listening()
    engine = launcher.family()[0]
    launcher.process.kill()
    eventually(lambda: all_gone([engine]))


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
