import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from epp.cli.main import main
from epp.demo import testbed
from epp.demo.client import Player
from epp.demo.figures import Sample
from epp.demo.pools import Size, choose_pool
from epp.demo.workload import Conversation, Turn, shipped_sections
from epp.gateway.processes import ProcessDied, spawn

SIMULATOR = [
    sys.executable,
    *("-m", "model_server.simulator", "--port", "0", "--block-size", "16", "--speed", "50"),
]
SHORT = ["--servers", "2", "--conversations", "4", "--seconds", "1", "--json"]


def demo(tmp_path, *arguments, **options):
    report = str(tmp_path / "report.html")
    argv = [sys.executable, "-m", "epp", "demo", "--report", report, *arguments]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


async def test_the_player_asks_in_turn_and_reads_the_usage(tmp_path):
    system = "\n".join(section.text for section in shipped_sections()[:3])
    turns = (Turn(0.0, "What is a block?", 5), Turn(0.0, "And a chain?", 7))
    samples: list[Sample] = []
    server = await spawn("simulator", SIMULATOR, log_dir=tmp_path)
    try:
        port = (await server.wait_ready_line(60))["port"]
        player = Player(f"http://127.0.0.1:{port}", "sim-model", samples.append)
        await player.play([Conversation(4, system, turns)])
        stranger = Player(f"http://127.0.0.1:{port}", "another-model", samples.append)
        await stranger.play([Conversation(5, system, turns)])
    finally:
        await server.stop()
    first, second, refused = samples
    assert [(s.conversation, s.turn) for s in samples] == [(4, 0), (4, 1), (5, 0)]
    assert [s.completion_tokens for s in samples] == [5, 7, 0]
    assert first.cached_tokens == 0 < first.prompt_tokens - 16 <= second.cached_tokens
    assert 0 < second.ttft < second.seconds
    assert refused.error.startswith("404")
    assert math.isnan(refused.ttft)


def test_a_short_demo_ends_with_figures_and_a_report(tmp_path):
    with demo(tmp_path, *SHORT) as process:
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    figures = json.loads(output.splitlines()[-1])["figures"]
    asked = figures["requests_round_robin"]
    assert asked == figures["requests_least_ttft"] >= 4
    assert figures["failed_least_ttft"] == figures["failed_round_robin"] == 0
    assert 0 <= figures["cached_ratio_least_ttft"] <= 1
    assert figures["close_least_ttft"] is not None
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 6
    assert not re.search(r"""(?:src|href)=["']?https?:""", page)
    assert f"Report: {tmp_path}" in output


@pytest.fixture
def heeds_interrupts():
    """Let children heed ctrl-C even where the shell that started the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize(
    ("phase", "number", "status"),
    [("starting", signal.SIGTERM, 143), ("under load", signal.SIGINT, 130)],
    ids=["sigterm", "ctrl-c"],
)
def test_an_interrupted_demo_leaves_nothing_running(phase, number, status, tmp_path):
    with demo(tmp_path, "--servers", "2", env=os.environ | {"TMPDIR": str(tmp_path)}) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if phase in line)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert line.startswith("round-robin")
    assert process.returncode == status
    assert "everything was stopped" in errors
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert not list(tmp_path.glob("warmpick-demo-*"))


@pytest.mark.parametrize("name", ["no/such/folder.html", "folder", "read-only.html"])
def test_a_report_that_cannot_be_written_is_told_at_once(name, tmp_path, capsys, monkeypatch):
    (tmp_path / "folder").mkdir()
    (there := tmp_path / "read-only.html").touch()
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != there and may(path, mode))
    assert main(["demo", "--report", str(tmp_path / name)]) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith(f"The demo failed: cannot write the report to {tmp_path / name}")


async def test_what_prepares_a_model_may_not_take_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(testbed, "PREPARE_SECONDS", 0.0)
    slow = (sys.executable, "-c", "import time; time.sleep(600)")  # it is ended before
    pool = msgspec.structs.replace(choose_pool("simulator", Size(), tmp_path), prepare=slow)
    with pytest.raises(ProcessDied, match="preparing the model took 0 s and more"):
        await testbed.prepare(pool, tmp_path)


def test_every_missing_part_is_named_with_its_remedy():
    code = "from epp.demo.requirements import missing; print(*missing('vllm'), sep='\\n')"
    bare = [sys.executable, "-S", "-c", code]  # without any installed package
    root = Path(__file__).parents[2]
    result = subprocess.run(bare, cwd=root, capture_output=True, text=True, check=True)
    lines = result.stdout
    named = dict(line.split(" is missing: ") for line in lines.splitlines())
    assert set(named) == {"aiohttp", "rich", "matplotlib", "model_server", "vllm", "Envoy"}
    assert all("pip install" in remedy or "make vllm" in remedy for remedy in named.values())
