"""Structured logs to stderr, as text or JSON. No log line contains text of a prompt."""

import io
import logging
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.request import InferenceRequest
from epp.printable import printable
from epp.protocol.extproc.record import RequestRecord
from epp.system.line_quota import LineQuota

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]

_WARNING_INTERVAL = 10.0
"""Least seconds between two warnings about rejections for one reason, or from a library."""
_MAX_CANDIDATES = 16
"""Candidates of a decision that are logged, at most."""


def configure_logs(level: Level = "info", form: Format = "console") -> None:
    """Send all log lines, those of libraries too, to stderr in one form.

    Lines that cannot be written are lost, so that a full disk or a closed pipe stops nothing.
    Tracebacks omit the values of local variables, which may hold a prompt.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering = _rendering(form)
    number = logging.getLevelNamesMapping()[level.upper()]
    lines = cast("TextIO", LossyStream(sys.stderr))
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(lines),  # a line is one write
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(lines)
    handler.addFilter(LibraryLines())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)


def _rendering(form: Format) -> list[Processor]:
    if form == "json":
        render = structlog.processors.JSONRenderer()
        return [structlog.processors.format_exc_info, _finite_fields, render]
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=_traceback
    )
    return [_printable_fields, console]


def _finite_fields(_: object, __: str, fields: EventDict) -> EventDict:
    """Write NaN and infinity as text: JSON has no such numbers (RFC 8259 §6)."""
    return {
        name: value if not isinstance(value, float) or math.isfinite(value) else str(value)
        for name, value in fields.items()
    }


def _printable_fields(_: object, __: str, fields: EventDict) -> EventDict:
    """Make text that others chose printable; the renderer shows other values by their `repr`."""
    return {
        printable(name): printable(value) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _traceback(stream: TextIO, error: ExcInfo) -> None:
    """Write a traceback, each line indented, so that none looks like a line of the log."""
    written = io.StringIO()
    structlog.dev.plain_traceback(written, error)
    lines = written.getvalue().removeprefix("\n").split("\n")
    stream.writelines(f"\n {printable(line)}" for line in lines)


class LossyStream:
    """Writes to a stream, and drops without an error what the stream does not take."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write a text."""
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        with suppress(OSError, ValueError):
            self._stream.flush()


class LibraryLines(logging.Filter):
    """Passes one record of a library about each subject in ten seconds, by the record's own time.

    The subject is the message's first line: the rest is a traceback, or has addresses of objects.
    """

    def __init__(self) -> None:
        super().__init__()
        self._quota = LineQuota(_WARNING_INTERVAL)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged."""
        subject = str(record.msg).partition("\n")[0]
        return self._quota.take(f"{record.name}: {subject}", record.created) is not None


class ExchangeLog:
    """Logs decisions and the end of exchanges: all at debug level, rejections as warnings.

    `clock` returns seconds. For each reason one rejection in ten seconds is logged, with the number
    (`more`) of those left out before it. With `quiet` nothing is logged.
    """

    def __init__(self, clock: Callable[[], float], *, quiet: bool = False) -> None:
        self._clock = clock
        self._quiet = quiet
        self._log = structlog.get_logger("exchange").bind()
        self.verbose = not quiet and self._log.is_enabled_for(logging.DEBUG)
        """Whether every decision and every end is logged."""
        self._quota = LineQuota(_WARNING_INTERVAL)

    def log_decision(self, request: InferenceRequest, decision: Decision) -> None:
        """Log a decision and those of its stages, with what each candidate would have cost.

        At most `_MAX_CANDIDATES` are logged, those with the earliest predicted first token, with
        the number (`more`) of those left out.
        """
        if self.verbose:
            for each in (decision, *decision.stages):
                fields = _decision_fields(each)
                self._log.debug("exchange.decided", request=request.id, **fields)

    def log_exchange(self, record: RequestRecord) -> None:
        """Log an exchange that has ended."""
        if record.error is not None and not self._quiet:
            self._warn(record, record.error.reason)
        if self.verbose:
            self._log.debug("exchange.finished", **_fields(record))

    def _warn(self, record: RequestRecord, reason: str) -> None:
        more = self._quota.take(reason, self._clock())
        if more is not None:
            fields = {"error": str(record.error), "more": more, **_fields(record)}
            self._log.warning("exchange.rejected", reason=reason, **fields)


def _decision_fields(decision: Decision) -> dict[str, object]:
    candidates = list(decision.candidates)
    by_ttft = sorted(range(len(candidates)), key=lambda at: candidates[at].predicted_ttft)
    shown = [_candidate_fields(decision, candidates[at], at) for at in by_ttft[:_MAX_CANDIDATES]]
    return {
        "profile": decision.profile,
        "endpoint": decision.endpoint.target,
        "prompt_tokens": decision.prompt_tokens,
        "candidates": shown,
        "more": len(candidates) - len(shown),
    }


def _candidate_fields(decision: Decision, candidate: Candidate, at: int) -> dict[str, object]:
    """Return one candidate's numbers; `score` is the weighted sum of its scores, if any."""
    fields: dict[str, object] = {
        "endpoint": candidate.endpoint.target,
        "cached_tokens": candidate.cached_tokens,
        **candidate.cost_terms(),
    }
    if decision.scores:
        fields["score"] = round(decision.totals[at], 6)
    return fields


def _fields(record: RequestRecord) -> dict[str, object]:
    """Return the ids and numbers of an exchange that are known."""
    request, decision, usage = record.request, record.decision, record.usage
    stages = decision.stages if decision else ()
    fields = {
        "request": record.id,
        "outcome": record.outcome.value if record.outcome else None,
        "status": record.status,
        "model": request.model if request else None,
        "endpoint": decision.endpoint.target if decision else None,
        "stages": {each.profile: each.destination for each in stages} or None,
        "served": record.served,
        "decided_ms": _milliseconds(record, record.decided_at),
        "first_byte_ms": _milliseconds(record, record.first_byte_at),
        "duration_ms": _milliseconds(record, record.finished_at),
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
        "predicted_cached_tokens": decision.predicted_cached_tokens if decision else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
    }
    return {name: field for name, field in fields.items() if field is not None}


def _milliseconds(record: RequestRecord, moment: float | None) -> float | None:
    return None if moment is None else round((moment - record.received_at) * 1000, 3)
