"""What traces and the ring of decisions cost a request, and what the console costs a picker.

Exchanges of 2 KB chats among ten endpoints go through the picker without its sockets; what traces
do with their records is timed over all of them at once, since it is shorter than a clock's reading.

python -m bench traces
"""

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count, islice
from statistics import median

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from bench.figures import Figure, Report, several
from bench.options import Options
from bench.progress import Progress
from bench.request_path import Messages, RequestPath, bodies
from epp.adapters.telemetry.debug_pages import Query
from epp.adapters.telemetry.decisions import Reuse
from epp.adapters.telemetry.logs import configure_logs
from epp.adapters.tracing.exporting import SCOPE, SpanExport
from epp.adapters.tracing.settings import TracingSettings
from epp.adapters.tracing.spans import SpanWriter
from epp.app.console.pages import Console, ConsoleSources
from epp.app.console.picker_parts import PickerParts
from epp.app.observers import Observer
from epp.app.observing.decision_ring import DecisionRing
from epp.app.observing.tracing import Tracing
from epp.config.file import DEFAULT_POLICY, POLICIES, load
from epp.model.decision import Decision
from epp.model.fleet import Fleet
from epp.model.quote import Quote
from epp.model.request import InferenceRequest
from epp.policy.explanations.ranking import measures
from epp.protocol.extproc.codec import encode
from epp.protocol.extproc.messages import HeadersReply, Mutation
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.trace_context import TraceSampling, traceparent
from epp.values import replaced

_Committed = tuple[InferenceRequest, Quote, Decision, float]

ENDPOINTS = 10
MANY = 1000
SIZE = 2 << 10
_EXCHANGES = 400
_ROUNDS = {True: 9, False: 25}
_BATCH = 100
NOTES = (
    "On the event loop: reading the headers, encoding one more header, the request's end.",
    "On the exporting thread: making spans and encoding them as OTLP, without the network.",
    "Without `--tracing` no span is made. Every decision is kept for `epp explain`.",
    "The console asks every second or two for 1,000 endpoints and 200 decisions.",
)


async def measure(progress: Progress, options: Options) -> Report:
    """Measure what sampled and unsampled requests cost."""
    configure_logs("error", "json")
    progress.step("exchanges that are traced")
    figures = await asyncio.to_thread(_figures, _ROUNDS[options.quick])
    return Report(name="traces", figures=figures, notes=NOTES)


def _figures(rounds: int) -> tuple[Figure, ...]:
    kept: list[RequestRecord] = []
    committed: list[_Committed] = []
    fleets: list[Fleet] = []

    def beside(fleet: Fleet, _: object) -> tuple[Observer]:
        fleets.append(fleet)
        return (
            Observer(
                name="kept", ended=kept.append, committing=lambda *given: committed.append(given)
            ),
        )

    path = RequestPath(ENDPOINTS, beside)
    source = bodies(SIZE)
    runs: dict[str, list[float]] = {"sampled": [], "unsampled": [], "thread": [], "ring": []}
    for turn in range(-1, rounds):
        kept.clear()
        committed.clear()
        for body in islice(source, _EXCHANGES):
            path.exchange(Messages.about(body))
        for name, found in _costs(kept):
            if turn >= 0:
                runs[name].append(found)
        if turn >= 0:
            runs["ring"].append(_ring_us(DecisionRing(fleets[0], {}), committed, kept))
    return (
        several(
            "span_us_sampled", "a sampled request, on the event loop", "µs", runs["sampled"], 40
        ),
        several("span_us_unsampled", "an unsampled request", "µs", runs["unsampled"], 1),
        several("ring_us", "keeping a decision for `epp explain`", "µs", runs["ring"], 3),
        several("span_thread_us", "a sampled request, on another thread", "µs", runs["thread"]),
        *_console_figures(rounds),
    )


def _console_figures(rounds: int) -> Iterator[Figure]:
    """Have the console ask of a fleet of 1,000 endpoints, each time for all of it."""
    fleets: list[Fleet] = []
    rings: list[DecisionRing] = []

    def beside(fleet: Fleet, _: object) -> tuple[Observer]:
        fleets.append(fleet)
        rings.append(DecisionRing(fleet, {}))
        return (rings[0].observer,)

    path = RequestPath(MANY, beside)
    for body in islice(bodies(SIZE), _EXCHANGES):
        path.exchange(Messages.about(body))
    (fleet,), (ring,) = fleets, rings
    sources = ConsoleSources(
        pool="bench",
        ring=ring,
        fleet=fleet,
        clock=count(1).__next__,  # each page is asked for when those before it are old
        reuse=Reuse,
        parts=PickerParts(path.flow, path.director.held),
    )
    console = Console(sources)
    page = console.pages[b"/debug/console"].answer
    asyncio.run(_asked(page))
    asked = [asyncio.run(_asked(page)) for _ in range(rounds)]
    spent, sizes, pieces = (tuple(column) for column in zip(*asked, strict=True))
    yield several("console_ms_1000", "a page of the console, CPU", "ms", spent, 20)
    yield several("console_kb_1000", "a page of the console, size", "KB", sizes, 300)
    yield several(
        "console_piece_ms_1000", "a page of the console, longest piece of work", "ms", pieces, 5
    )
    _longest_piece(path)  # the first one imports
    metrics = tuple(_longest_piece(path) for _ in range(rounds))
    yield several(
        "metrics_piece_ms_1000", "the metrics page, longest piece of work", "ms", metrics, 5
    )


def _longest_piece(path: RequestPath) -> float:
    """Return the milliseconds of the metrics page's longest piece."""
    gc.collect()
    longest, turned = 0.0, time.thread_time()
    for _ in path.telemetry.page():
        now = time.thread_time()
        longest, turned = max(longest, now - turned), now
    return 1e3 * longest


async def _asked(page: Callable[[Query], Awaitable[bytes]]) -> tuple[float, float, float]:
    """Return the milliseconds that a page takes, its kilobytes, and its longest piece."""
    gc.collect()
    longest = 0.0
    started = turned = time.thread_time()
    task = asyncio.ensure_future(page({}))
    while not task.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, turned = max(longest, now - turned), now
    return 1e3 * (time.thread_time() - started), len(task.result()) / 1e3, 1e3 * longest


def _costs(records: Sequence[RequestRecord]) -> Iterator[tuple[str, float]]:
    header = _header_us()
    for name, ratio in (("unsampled", 0.0), ("sampled", 1.0)):
        for record in records:
            record.span = None
        tracing = _tracing(ratio)
        yield name, header + _each_us(records, tracing.begin) + _each_us(records, tracing.ended)
    yield "thread", _thread_us(records)


def _each_us(records: Sequence[RequestRecord], call: Callable[[RequestRecord], object]) -> float:
    gc.collect()
    started = time.perf_counter_ns()
    for record in records:
        call(record)
    return (time.perf_counter_ns() - started) / len(records) / 1e3


def _ring_us(
    ring: DecisionRing, committed: Sequence[_Committed], records: Sequence[RequestRecord]
) -> float:
    gc.collect()
    started = time.perf_counter_ns()
    for given in committed:
        ring.committing(*given)
    for record in records:
        ring.ended(record)
    return (time.perf_counter_ns() - started) / len(records) / 1e3


def _tracing(ratio: float) -> Tracing:
    settings = TracingSettings(sampling=TraceSampling(ratio), queue=2 * _EXCHANGES)
    chance = random.Random(1)
    export = SpanExport(settings, time.monotonic, {}, {})
    return Tracing(settings, export, time.monotonic, chance)


def _header_us() -> float:
    """Return what one header more takes to be encoded."""
    plain = HeadersReply(response=False, mutation=Mutation(set_headers=(("a", "10.0.0.1:8000"),)))
    sent = ("traceparent", traceparent(1 << 100, 1 << 60, 1))
    more = replaced(plain, mutation=Mutation(set_headers=(("a", "10.0.0.1:8000"), sent)))
    times: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(2000):
        for which, reply in enumerate((plain, more)):
            started = time.perf_counter_ns()
            encode(reply)
            times[which].append(time.perf_counter_ns() - started)
    return (median(times[1]) - median(times[0])) / 1e3


def _thread_us(records: Sequence[RequestRecord]) -> float:
    profiles = load(POLICIES[DEFAULT_POLICY]).scheduling.profiles
    scope = InstrumentationScope(SCOPE, "0")
    writer = SpanWriter(Resource({"service.name": "bench"}), scope, measures(profiles), {})
    sampled = [each for each in records if each.span is not None]
    started = time.thread_time_ns()
    for begin in count(0, _BATCH):
        batch = sampled[begin : begin + _BATCH]
        if not batch:
            break
        spans = [span for record in batch for span in writer.spans(record, 0.0)]
        encode_spans(spans).SerializeToString()
    return (time.thread_time_ns() - started) / len(sampled) / 1e3
