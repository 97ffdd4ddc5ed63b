"""The thread that makes spans of finished requests and exports them.

On the event loop a sampled request costs a `put`. Spans that the collector refuses, or does not
take in time, are dropped and counted: no request waits or fails because of its trace.
"""

import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from epp import __version__
from epp.adapters.tracing.settings import Exporter, TracingSettings
from epp.errors import FAULTS
from epp.policy.explanations.ranking import Measure, weight_of
from epp.protocol.extproc.record import RequestRecord
from epp.system.logs import Log

if TYPE_CHECKING:  # the thread imports it: it takes long, and a start does not wait for it
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from epp.adapters.tracing.spans import SpanWriter

_log = Log(__name__)

_EXPORTERS: Final[Mapping[Exporter, tuple[str, str]]] = {
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "OTLPSpanExporter"),
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "OTLPSpanExporter"),
    "console": ("opentelemetry.sdk.trace.export", "ConsoleSpanExporter"),
}
SCOPE: Final = "llm-d-router"
"""The instrumentation scope of llm-d-router's spans."""
_MAX_WEIGHT: Final = 1 << 18
"""The weight of decisions that wait for the thread (`weight_of`): some 30 MB."""
_STOP_SECONDS: Final = 2.0


class SpanExport:
    """Exports the spans of requests between `start` and `stop`; `put` is for the event loop.

    Counts the requests that were put: the collector took the spans of `exported`, and did not take
    those of `failed`; for `dropped` no spans were made. `clock` returns seconds.
    """

    def __init__(
        self,
        settings: TracingSettings,
        clock: Callable[[], float],
        measures: Mapping[str, Measure],
        types: Mapping[str, str],
    ) -> None:
        self.exported = self.failed = self.dropped = 0
        self._settings = settings
        self._clock = clock
        self._measures = measures
        self._types = types
        self._queue: SimpleQueue[RequestRecord | None] = SimpleQueue()
        self._weight_put = self._weight_taken = 0
        self._warned = False
        context = contextvars.copy_context()  # its log lines name the pool
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="traces", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Export what was put, and end; do not wait for a hanging collector beyond some seconds."""
        self._queue.put(None)
        self._thread.join(_STOP_SECONDS)

    def put(self, record: RequestRecord) -> None:
        """Queue a sampled request that has ended."""
        weight = self._weight_put + weight_of(record.decision)
        if self._queue.qsize() >= self._settings.queue or weight - self._weight_taken > _MAX_WEIGHT:
            self.dropped += 1
            return
        self._weight_put = weight
        self._queue.put(record)

    @property
    def counts(self) -> Iterator[tuple[str, int]]:
        """Requests by the outcome of their spans: `exported`, `failed` or `dropped`."""
        for name in ("exported", "failed", "dropped"):
            yield name, getattr(self, name)

    def _run(self) -> None:
        try:
            writer, exporter = self._writer(), self._exporter()
        except FAULTS as error:  # such as an endpoint that cannot be read
            self._warn(error)
            while (record := self._queue.get()) is not None:
                self._weight_taken += weight_of(record.decision)
                self.failed += 1
            return
        going = True
        while going:
            requests, going = self._gathered()
            self._export(requests, writer, exporter)
        exporter.shutdown()

    def _writer(self) -> "SpanWriter":
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 (see above)
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        from epp.adapters.tracing.spans import SpanWriter  # noqa: PLC0415

        attributes = {"service.version": __version__, "warmpick.pool": self._settings.pool}
        if self._settings.service_name:
            attributes["service.name"] = self._settings.service_name
        scope = InstrumentationScope(SCOPE, __version__)
        return SpanWriter(Resource.create(attributes), scope, self._measures, self._types)

    def _exporter(self) -> "SpanExporter":
        module, name = _EXPORTERS[self._settings.exporter]
        more = {"out": sys.stdout} if self._settings.exporter == "console" else {}
        exporter: SpanExporter = getattr(import_module(module), name)(**more)
        return exporter

    def _gathered(self) -> tuple[list[RequestRecord], bool]:
        """Wait for requests, then gather more for a moment; return them, and whether to go on."""
        gathered: list[RequestRecord] = []
        until: float | None = None
        while len(gathered) < self._settings.batch:
            try:
                record = self._queue.get(timeout=until and max(0.0, until - time.monotonic()))
            except Empty:
                break
            if record is None:
                return gathered, False
            self._weight_taken += weight_of(record.decision)
            gathered.append(record)
            if until is None:
                until = time.monotonic() + self._settings.delay
        return gathered, True

    def _export(
        self, requests: list[RequestRecord], writer: "SpanWriter", exporter: "SpanExporter"
    ) -> None:
        """Export the spans of requests, in batches that keep those of one together."""
        since = time.time() - self._clock()
        spans: list[ReadableSpan] = []
        of = 0
        for record in requests:
            try:
                spans += writer.spans(record, since)
                of += 1
            except FAULTS as error:  # whatever it is, the others are exported
                self.failed += 1
                self._warn(error)
            if len(spans) >= self._settings.batch:
                self._send(spans, of, exporter)
                spans, of = [], 0
            # Releases the GIL, for which the event loop may be waiting: a thread that computes is
            # made to release it only after 5 ms (`sys.getswitchinterval`). The spans of a request
            # take some 0.4 ms.
            time.sleep(0)
        if spans:
            self._send(spans, of, exporter)

    def _send(self, spans: list["ReadableSpan"], of: int, exporter: "SpanExporter") -> None:
        try:
            taken = exporter.export(spans).value == 0
        except FAULTS as error:  # an exporter is not to raise
            taken = False
            self._warn(error)
        if taken:
            self.exported += of
        else:
            self.failed += of

    def _warn(self, error: BaseException) -> None:
        """Log the first error of our own; the exporters log theirs."""
        if not self._warned:
            self._warned = True
            _log.error("tracing.failed", error=str(error), kind=type(error).__name__)
