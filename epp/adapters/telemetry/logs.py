"""Structured logs to stderr, for people or for machines; never any text of a prompt."""

import logging
import sys
from collections.abc import Callable
from typing import Literal

import structlog
from structlog.typing import Processor

from epp.protocol.extproc.record import RequestRecord

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]

_PAUSE = 10.0
"""Seconds between two warnings about rejections of one reason."""


def configure_logs(level: Level = "info", form: Format = "console") -> None:
    """Send every log line, those of libraries too, to stderr in one form.

    Tracebacks come without the values of local variables, which may hold a prompt.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering = _rendering(form)
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)


def _rendering(form: Format) -> list[Processor]:
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]


class ExchangeLog:
    """Logs the ends of exchanges: each at debug level, rejections as warnings now and then.

    `clock` gives seconds. Of the rejections for one reason, one in ten seconds is a warning,
    which counts those it stands for.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._log = structlog.get_logger("exchange").bind()
        self._verbose = self._log.is_enabled_for(logging.DEBUG)
        self._warned: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def log_exchange(self, record: RequestRecord) -> None:
        """Log one exchange that is over."""
        if record.error is not None:
            self._warn(record, record.error.reason)
        if self._verbose:
            self._log.debug("exchange.finished", **_facts(record))

    def _warn(self, record: RequestRecord, reason: str) -> None:
        now = self._clock()
        if now - self._warned.get(reason, -_PAUSE) < _PAUSE:
            self._unsaid[reason] = self._unsaid.get(reason, 0) + 1
            return
        self._warned[reason] = now
        facts = {"error": str(record.error), "more": self._unsaid.pop(reason, 0)}
        self._log.warning("exchange.rejected", reason=reason, **facts, **_facts(record))


def _facts(record: RequestRecord) -> dict[str, object]:
    """Say what happened in ids and numbers; what is not known is left out."""
    request, decision, usage = record.request, record.decision, record.usage
    facts = {
        "request": record.id,
        "outcome": record.outcome.value if record.outcome else None,
        "status": record.status,
        "model": request.model if request else None,
        "endpoint": decision.endpoint.target if decision else None,
        "served": record.served,
        "decided_ms": _since(record, record.decided_at),
        "first_byte_ms": _since(record, record.first_byte_at),
        "duration_ms": _since(record, record.finished_at),
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
        "predicted_cached_tokens": decision.predicted_cached_tokens if decision else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _since(record: RequestRecord, moment: float | None) -> float | None:
    return None if moment is None else round((moment - record.received_at) * 1000, 3)
