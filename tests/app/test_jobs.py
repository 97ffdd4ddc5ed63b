import asyncio
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from epp.app import jobs
from epp.app.jobs import attempt, error_fields, keep_running, keep_running_until
from epp.errors import ConfigError


async def failing(faults):
    """Run a job that raises these in turn, then lasts; return what was logged."""
    lasting = asyncio.Event()
    left = list(faults)

    async def job():
        if left:
            fault = left.pop(0)
            if fault is not None:
                raise fault
            return
        lasting.set()
        await asyncio.Event().wait()

    with capture_logs() as logs:
        task = asyncio.create_task(keep_running("scrape", job, pauses=(0.001, 30.0)))
        await asyncio.wait_for(lasting.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    return logs


async def test_a_job_that_would_end_the_process_is_started_again():
    logs = await failing([SystemExit(2), KeyboardInterrupt()])
    assert [line["error"] for line in logs] == ["SystemExit: 2", "KeyboardInterrupt: "]


async def test_a_job_that_is_to_stop_is_awaited_and_not_started_again():
    stopping, said = asyncio.Event(), []

    async def job():
        stopping.set()
        await asyncio.sleep(0)
        raise ValueError

    await keep_running_until(stopping, "scrape", job, lambda *what: said.append(what), (60, 60))
    assert said == []


async def test_a_job_that_is_to_stop_is_not_awaited_for_its_pause():
    stopping, began = asyncio.Event(), []

    async def job():
        began.append("now")

    def failed(*_):
        asyncio.get_running_loop().call_soon(stopping.set)

    async with asyncio.timeout(10):
        await keep_running_until(stopping, "scrape", job, failed, (60, 60))
    assert began == ["now"]


async def test_a_job_that_fails_or_ends_is_started_again_after_a_growing_pause():
    group = ExceptionGroup("tasks", [ExceptionGroup("more", [KeyError("x")])])
    logs = await failing([ValueError("one"), ConfigError("two"), None, group, MemoryError()])
    assert [line["event"] for line in logs] == ["job.failed"] * 5
    assert {line["job"] for line in logs} == {"scrape"}
    assert [line["again_in"] for line in logs] == [0.001, 0.002, 0.004, 0.008, 0.016]
    assert [line["error"] for line in logs] == [
        "ValueError: one",
        "ConfigError: two",
        "it has ended",
        "KeyError: 'x'",
        "MemoryError: ",
    ]


async def test_after_a_job_that_lasted_the_pause_is_the_first_one_again(monkeypatch):
    monkeypatch.setattr(jobs, "_LASTED_SECONDS", 0.0)
    logs = await failing([ValueError()] * 3)
    assert [line["again_in"] for line in logs] == [0.001] * 3


def test_what_is_said_of_an_error_has_its_place_and_a_bound():
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("x" * 10_000)
    said = error_fields(raised.value)
    assert len(said["error"]) <= 500
    assert said["at"].startswith("test_jobs.py:")
    assert said["at"].endswith(" test_what_is_said_of_an_error_has_its_place_and_a_bound")


async def test_a_step_of_a_shutdown_that_fails_is_said_and_passed_over():
    async def fail():
        raise OSError("no")

    with capture_logs() as logs:
        await attempt("drain", fail())
    assert [(line["event"], line["step"], line["error"]) for line in logs] == [
        ("shutdown.failed", "drain", "OSError: no")
    ]


PICKER = """
import asyncio, sys
from pathlib import Path
import epp.app.process
import epp.system.daemon_thread
from structlog.testing import capture_logs
from epp.app.options import ServeOptions
from epp.app.picker import EndpointPicker
from epp.config.file import POLICIES, load

def no_thread(*_):
    raise RuntimeError("can't start new thread")

async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)

async def main(path):
    ports = dict(grpc_port=0, health_port=0, metrics_port=0, bind_address="127.0.0.1")
    more = dict(secure=False, transport="grpcio", drain_timeout=0.1)
    options = ServeOptions(settings=load(POLICIES["random"]), source=path, **ports, **more)
    picker, stop = EndpointPicker(options), asyncio.Event()
    with capture_logs() as logs:
        serving = asyncio.create_task(picker.run(stop))
        await until(lambda: picker.ready)
        # One thread waits for a change of the endpoints file; the next one cannot be started.
        epp.system.daemon_thread.start_new_thread = no_thread
        path.write_text("endpoints: []  # changed")
        await until(lambda: sum(line["event"] == "job.failed" for line in logs) == 2)
        print(picker.ready, serving.done())
        stop.set()
        await serving
    for line in logs:
        if line["event"] in {"job.failed", "stopped"}:
            print(line["event"], line.get("job"), line.get("again_in"), line.get("at"))

asyncio.run(asyncio.wait_for(main(Path(sys.argv[1])), 20))
"""


def test_a_picker_serves_on_while_one_of_its_jobs_fails(tmp_path):
    path = tmp_path / "endpoints.yaml"
    path.write_text("endpoints: []")
    child = [sys.executable, "-c", PICKER, path]
    said = subprocess.run(child, capture_output=True, text=True, timeout=60, check=True)
    alive, *failures, stopped = said.stdout.splitlines()
    assert alive == "True False"
    assert [line.split()[:3] for line in failures] == [
        ["job.failed", "endpoints", "0.1"],
        ["job.failed", "endpoints", "0.2"],
    ]
    assert "endpoints_file.py" in failures[0]
    assert stopped.startswith("stopped")
