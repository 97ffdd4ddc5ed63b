"""Logs are read back from the standard error of a process of their own."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.adapters.telemetry.logs import ExchangeLog, LibraryLines
from epp.errors import NoEndpoints, Overloaded
from epp.model.decision import Decision, Score
from epp.model.endpoint import Endpoint
from epp.model.request import InferenceRequest, Prompt, RequestId, Usage
from epp.protocol.extproc.record import Outcome
from tests.records import record_of
from tests.strategies import candidate

SECRET = "what the client wrote"  # noqa: S105 - a prompt, no password

SCRIPT = """
import logging, structlog, sys
from epp.adapters.telemetry.logs import configure_logs
configure_logs(sys.argv[1], sys.argv[2])
log = structlog.get_logger("epp")
log.debug("hidden.at_info")
log.info("endpoint.added", endpoint="default/a", port=8000)
logging.getLogger("aiohttp.server").warning("from a library: %s", 5)
logging.getLogger("aiohttp.server").info("chatter")
def fail(prompt):
    raise ValueError("broken")
try:
    fail("what the client wrote")
except ValueError:
    log.exception("picker.failed")
"""


def stderr(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return done.stderr


def test_json_is_one_object_a_line():
    lines = [json.loads(line) for line in stderr("info", "json").splitlines()]
    assert [line["event"] for line in lines] == [
        "endpoint.added",
        "from a library: 5",
        "picker.failed",
    ]
    assert [line["level"] for line in lines] == ["info", "warning", "error"]
    assert lines[0]["endpoint"] == "default/a"
    assert lines[0]["port"] == 8000
    assert lines[0]["timestamp"].endswith("Z")
    assert "ValueError: broken" in lines[2]["exception"]


def test_json_has_no_number_that_json_does_not_know():
    script = SCRIPT.replace("port=8000", 'score=float("nan"), most=float("-inf"), least=0.5')
    done = subprocess.run(
        [sys.executable, "-c", script, "info", "json"], capture_output=True, text=True, check=True
    )
    line = json.loads(done.stderr.splitlines()[0], parse_constant=pytest.fail)
    assert (line["score"], line["most"], line["least"]) == ("nan", "-inf", 0.5)


def test_console_is_for_people():
    text = stderr("info", "console")
    assert "endpoint.added" in text
    assert "from a library: 5" in text
    assert "ValueError: broken" in text
    assert "\x1b[" not in text


@pytest.mark.parametrize("form", ["json", "console"])
def test_tracebacks_omit_values_of_variables(form):
    frames = stderr("debug", form)
    assert "hidden.at_info" in frames
    assert f"prompt = '{SECRET}'" not in frames


def test_level_error_hides_the_rest():
    lines = stderr("error", "json").splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["picker.failed"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_line_that_cannot_be_written_ends_nothing(form):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", f"{SCRIPT}\nprint('it goes on')", "debug", form],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
        )
    assert done.stdout == "it goes on\n"


EVIL = """
import logging, structlog, sys
from epp.adapters.telemetry.logs import configure_logs
evil = "x\\x1b[2J\\x9b31m\\u202e\\u2028\\r\\n2026-01-01T00:00:00Z [info] forged\\x7f\\ud800"
configure_logs("debug", sys.argv[1])
log = structlog.get_logger("epp")
log.info(evil, endpoint=evil, names=[evil], why=ValueError(evil), **{evil: evil})
logging.getLogger("aiohttp.server").warning("of a library: %s", evil)
try:
    raise ValueError(evil)
except ValueError:
    log.exception("picker.failed", evil=evil)
    logging.getLogger("asyncio").exception("failed: %s", evil)
"""


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_others_said_is_never_obeyed_and_forges_no_line(form):
    done = subprocess.run([sys.executable, "-c", EVIL, form], capture_output=True, check=True)
    lines = done.stderr.decode().splitlines()
    assert lines == done.stderr.decode().split("\n")[:-1]
    assert all(line.isprintable() for line in lines)
    assert not [line for line in lines if line.startswith("2026-01-01")]
    assert sum("forged" in line for line in lines) >= 4


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


REQUEST = InferenceRequest(
    id=RequestId("r1"), model="m", prompts=(Prompt(SECRET.encode()),), headers={"a": SECRET}
)


def record(**fields):
    return record_of(id=RequestId("r1"), received_at=5.0, request=REQUEST, **fields)


SERVED = {
    "decision": Decision(
        endpoints=(Endpoint("default", "a", "10.0.0.1", 8000),), predicted_cached_tokens=64
    ),
    "outcome": Outcome.COMPLETED,
    "decided_at": 5.002,
    "first_byte_at": 5.5,
    "finished_at": 6.0,
    "status": 200,
    "request_bytes": 10,
    "response_bytes": 20,
    "usage": Usage(prompt_tokens=100, completion_tokens=7, cached_tokens=48),
}


def test_an_exchange_is_logged_in_ids_and_numbers():
    with capture_logs() as logs:
        ExchangeLog(Clock()).log_exchange(record(**SERVED))
    assert logs == [
        {
            "event": "exchange.finished",
            "log_level": "debug",
            "request": "r1",
            "outcome": "completed",
            "status": 200,
            "model": "m",
            "endpoint": "10.0.0.1:8000",
            "decided_ms": 2.0,
            "first_byte_ms": 500.0,
            "duration_ms": 1000.0,
            "request_bytes": 10,
            "response_bytes": 20,
            "predicted_cached_tokens": 64,
            "cached_tokens": 48,
            "prompt_tokens": 100,
            "completion_tokens": 7,
        }
    ]


TERMS = {
    "class_prefill_ms": 0.0,
    "decode_ms": 0.0,
    "generation_ms": 0.0,
    "crowding_ms": 0.0,
    "slot_ms": 0.0,
    "busy_share": 0.25,
    "ttft_share": 0.05,
}


def queued(milliseconds, **more):
    name = f"after-{milliseconds}"
    return candidate(name, queued_prefill_seconds=milliseconds / 1e3, busy_share=0.25, **more)


def test_a_decision_is_logged_with_the_cost_of_each_candidate():
    candidates = [queued(7), queued(3, prefill_seconds=0.002, cached_tokens=64)]
    decision = Decision(
        endpoints=(candidates[1].endpoint,),
        prompt_tokens=80,
        candidates=candidates,
        scores=[Score("queue-scorer", 2.0, [0.25, 1.0])],
        totals=[0.5, 2.0],
    )
    with capture_logs() as logs:
        ExchangeLog(Clock()).log_decision(REQUEST, decision)
    slow, quick = (each.endpoint.target for each in candidates)
    assert logs == [
        {
            "event": "exchange.decided",
            "log_level": "debug",
            "request": "r1",
            "profile": "default",
            "endpoint": quick,
            "prompt_tokens": 80,
            "candidates": [
                {
                    "endpoint": quick,
                    "cached_tokens": 64,
                    "queued_prefill_ms": 3.0,
                    "prefill_ms": 2.0,
                    "score": 2.0,
                    **TERMS,
                },
                {
                    "endpoint": slow,
                    "cached_tokens": 0,
                    "queued_prefill_ms": 7.0,
                    "prefill_ms": 0.0,
                    "score": 0.5,
                    **TERMS,
                },
            ],
            "more": 0,
        }
    ]


def test_of_many_candidates_the_earliest_are_logged_and_of_stages_all():
    candidates = [queued(milliseconds) for milliseconds in range(40, 0, -1)]
    prefill = Decision(endpoints=(candidates[1].endpoint,), profile="prefill")
    decision = Decision(
        endpoints=(candidates[0].endpoint,), candidates=candidates, stages=(prefill,)
    )
    with capture_logs() as logs:
        ExchangeLog(Clock()).log_decision(REQUEST, decision)
    shown = [each["queued_prefill_ms"] for each in logs[0]["candidates"]]
    assert shown == [float(milliseconds) for milliseconds in range(1, 17)]
    assert logs[0]["more"] == 24
    assert [(each["profile"], len(each["candidates"])) for each in logs] == [
        ("default", 16),
        ("prefill", 0),
    ]


def test_rejections_warn_once_in_ten_seconds_a_reason():
    clock = Clock()
    log = ExchangeLog(clock)

    def rejected(error):
        log.log_exchange(record(error=error, outcome=Outcome.REJECTED))

    with capture_logs() as logs:
        for _ in range(5):
            rejected(NoEndpoints("none left"))
        rejected(Overloaded("full"))
        clock.now += 10
        rejected(NoEndpoints("none left"))
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [(entry["reason"], entry["more"]) for entry in warnings] == [
        ("no-endpoints", 0),
        ("overloaded", 0),
        ("no-endpoints", 4),
    ]
    assert warnings[0]["error"] == "none left"
    assert SECRET not in repr(logs)


def test_a_library_repeats_itself_once_in_ten_seconds():
    lines = LibraryLines()

    def passes(message, at, name="asyncio"):
        record = logging.LogRecord(name, logging.ERROR, "", 0, message, None, None)
        record.created = at
        return lines.filter(record)

    assert passes("Unhandled exception\ntransport: <0x1>", 100)
    assert not passes("Unhandled exception\ntransport: <0x2>", 101)
    assert passes("Unhandled exception\ntransport: <0x2>", 101, name="other")
    assert passes("Fatal error", 101)
    assert passes("Unhandled exception", 110)
    for number in range(3_000):
        passes(f"subject {number}", 111)
    assert len(lines._quota._passed) <= 1_000
