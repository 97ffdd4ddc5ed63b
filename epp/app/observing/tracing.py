"""Tracing as an observer of requests: samples them, and propagates the trace to model servers.

Whether a request is sampled is decided with the pick, so that the model server learns it with the
request. The spans are made from the request's record when it has ended. A request that is not
sampled costs only the reading and writing of the headers.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Final

from epp.adapters.telemetry.series import FamilyText, counter, expose
from epp.adapters.tracing.exporting import SpanExport
from epp.adapters.tracing.settings import TracingSettings
from epp.app.observers import Observer
from epp.errors import ConfigError
from epp.policy.explanations.ranking import measures
from epp.policy.profile import Scheduling
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.settings import Headers
from epp.protocol.trace_context import (
    LOW_BITS,
    SAMPLED,
    TRACEPARENT,
    BegunSpan,
    ParentSpan,
    parse,
    traceparent,
)
from epp.system.logs import Log

_log = Log(__name__)

TRACED: Final = counter(
    "warmpick_traced_requests_total",
    "Requests whose traces are sampled, by what became of their spans.",
    "outcome",
)
_EXTRA: Final = "pip install 'warmpick[otel]'"
_TRACESTATE: Final = "tracestate"

_NOT_SAMPLED = "-0000000000000001-00"
"""The end of a `traceparent` that is not sampled; the id's span is never exported."""


class Tracing:
    """Traces requests, whose ids are UUIDs. `clock` returns seconds, `chance` is for ids.

    `begin` returns the headers for the model server; `observer` observes the requests.
    """

    def __init__(
        self,
        settings: TracingSettings,
        export: SpanExport,
        clock: Callable[[], float],
        chance: random.Random,
    ) -> None:
        self._settings = settings
        self._export = export
        self._clock = clock
        self._chance = chance.random
        self._draw = chance.getrandbits
        self._ratio = settings.sampling.ratio
        self._bound = settings.sampling.bound
        self._parent_based = settings.sampling.parent_based

    @property
    def observer(self) -> Observer:
        """The observer of requests."""
        return Observer(
            name="tracing",
            ended=self.ended,
            start=self._start,
            collect=self._collect,
            stop=self._stop,
        )

    def begin(self, record: RequestRecord) -> Headers:
        """Begin the span of a request that was decided on; return headers for the model server.

        The headers of a client whose trace is not sampled pass unchanged.
        """
        request = record.request
        headers: Mapping[str, str] = {} if request is None else request.headers
        if TRACEPARENT in headers:
            parent = parse(headers[TRACEPARENT])
            if parent is not None:
                return self._begin_below(parent, record)
        if self._chance() < self._ratio:
            sent = self._begin_first(record)
        else:
            # The request's own id has 32 hexadecimal digits; those of a variant (RFC 9562 §4.1)
            # keep it from what samplers of up to a half of all traces take.
            sent = (TRACEPARENT, "00-" + record.id.replace("-", "") + _NOT_SAMPLED)
        if _TRACESTATE in headers:
            # Trace Context §4.3: what belongs to a trace that is not gone on with is not sent on.
            return sent, (_TRACESTATE, "")
        return (sent,)

    def _begin_first(self, record: RequestRecord) -> tuple[str, str]:
        """Begin the first span of a trace, with an id that OpenTelemetry's samplers would take."""
        draw, bound = self._draw, self._bound
        low = draw(64) * bound >> 64
        trace_id, span_id = draw(64) << 64 | low or 1, draw(64) or 1
        record.span = BegunSpan(trace_id, span_id, 0, SAMPLED, self._clock())
        return TRACEPARENT, traceparent(trace_id, span_id, SAMPLED)

    def _begin_below(self, parent: ParentSpan, record: RequestRecord) -> Headers:
        flags = parent.flags
        if not self._parent_based:
            sampled = SAMPLED if parent.trace_id & LOW_BITS < self._bound else 0
            flags = flags & ~SAMPLED | sampled
        elif not parent.sampled:
            return ()
        span_id = self._draw(64) or 1
        if flags & SAMPLED:
            span = BegunSpan(parent.trace_id, span_id, parent.span_id, flags, self._clock())
            record.span = span
        return ((TRACEPARENT, traceparent(parent.trace_id, span_id, flags)),)

    def ended(self, record: RequestRecord) -> None:
        """Export an ended request; one that was rejected after it was read is sampled only now."""
        if record.span is None:
            if record.decision is not None or record.request is None:
                return
            self.begin(record)
            if record.span is None:
                return
        self._export.put(record)

    def _start(self) -> None:
        for warning in self._settings.warnings:
            _log.warning("tracing.warning", warning=warning)
        self._export.start()

    def _collect(self) -> Iterator[FamilyText]:
        counts = [((outcome,), times) for outcome, times in self._export.counts]
        yield from expose(TRACED, counts)

    async def _stop(self) -> None:
        await asyncio.to_thread(self._export.stop)


def tracing_or_none(
    settings: TracingSettings | None, scheduling: Scheduling, clock: Callable[[], float]
) -> Tracing | None:
    """Return the tracing of requests; None if they are not traced. Raises `ConfigError`."""
    if settings is None:
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise ConfigError(f"OpenTelemetry is not installed: {_EXTRA}", "--tracing")
    types = {name: kind for kind, name in scheduling.plugin_names.values()}
    export = SpanExport(settings, clock, measures(scheduling.profiles), types)
    return Tracing(settings, export, clock, random.Random())  # noqa: S311 (chance, not secrets)
