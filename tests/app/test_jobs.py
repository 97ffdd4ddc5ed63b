import asyncio

import pytest
from structlog.testing import capture_logs

from epp.app.jobs import attempt, gist, keep_running
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
        task = asyncio.create_task(keep_running("scrape", job, pause=0.001))
        await asyncio.wait_for(lasting.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    return logs


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


def test_what_is_said_of_an_error_has_its_place_and_a_bound():
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("x" * 10_000)
    said = gist(raised.value)
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
