"""The picker's metrics: counts requests and exchanges, and writes the metrics page."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from epp.adapters.telemetry import families
from epp.adapters.telemetry.cardinality import MAX_VALUES, OTHER
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.pool_gauges import CacheView, PoolGauges, PoolView
from epp.adapters.telemetry.requests import RequestMetrics
from epp.adapters.telemetry.series import FamilyText, Labels, expose
from epp.errors import NoEndpoints
from epp.model.request import Decision, InferenceRequest, RequestId
from epp.protocol.extproc.record import Outcome, RequestRecord

_INDEX: Final = "prefix-index"
_MAX_ATTEMPT_SERIES = 10 * MAX_VALUES


@dataclass(frozen=True, slots=True)
class MetricSources:
    """Values that are read when a page is written, and constants.

    `pool` returns every endpoint with its load and whether it can be picked; `caches` the modelled
    state of their caches; `index_size` the blocks in the prefix index; `kv_events` batches by
    endpoint and outcome; `left_as_text` prompts by cause. `under_way` says whether an unobserved
    request is modelled as still running.
    """

    pool_name: str
    pool: PoolView
    caches: CacheView
    index_size: Callable[[], int]
    kv_events: Callable[[], Mapping[tuple[str, str], int]] = dict
    left_as_text: Callable[[], Mapping[str, int]] = dict
    under_way: Callable[[RequestId], bool] = lambda _: False
    commit: str = "unknown"
    build_ref: str = "unknown"


class Telemetry:
    """Counts requests and exchanges, and writes the metrics page, with `process_*`.

    At most `most_flows` combinations of model names, fairness id and priority have series of
    their own. Every method but `page` takes a few microseconds. For one thread only.
    """

    def __init__(self, sources: MetricSources, *, most_flows: int = MAX_VALUES) -> None:
        self._sources = sources
        self._pool = PoolGauges(sources.pool_name, sources.pool, sources.caches)
        self._requests = RequestMetrics(sources.under_way, most_flows)
        self._attempts: dict[Labels, int] = {}
        self._outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self._scheduling = Histogram(families.SCHEDULER_BOUNDS)
        self._processing = Histogram(families.PROCESSING_BOUNDS)
        self._scrape_failures = 0

    def scheduled(self, request: InferenceRequest, decision: Decision, seconds: float) -> None:
        """Count a pick that took `seconds`; it counts as running until `finished`."""
        self._scheduling.observe(seconds)
        endpoint = decision.endpoint
        place = (endpoint.name, endpoint.namespace, str(endpoint.port))
        self._attempt("success", request.target_model or request.model, place)
        self._requests.start(request)

    def finished(self, record: RequestRecord) -> None:
        """Count the end of an exchange; call it once for each."""
        if record.outcome is not None:
            self._outcomes[record.outcome] += 1
        if record.decided_at is not None:
            self._processing.observe(record.decided_at - record.received_at)
        elif isinstance(record.error, NoEndpoints):
            request = record.request
            self._attempt("failure", request.target_model or request.model if request else "")
        self._requests.finish(record)

    def scrape_failed(self) -> None:
        """Count a poll of an endpoint that failed."""
        self._scrape_failures += 1

    def _attempt(self, status: str, model: str, place: tuple[str, str, str] = ("", "", "")) -> None:
        key = (status, self._requests.model(model), *place)
        if key not in self._attempts and len(self._attempts) >= _MAX_ATTEMPT_SERIES:
            key = (status, OTHER, OTHER, OTHER, OTHER)
        self._attempts[key] = self._attempts.get(key, 0) + 1

    def page(self, *, openmetrics: bool = False) -> Iterator[str]:
        """Yield the metrics page in Prometheus text format, or in OpenMetrics'.

        Each piece is one family, so that the event loop may run other tasks in between.
        """
        for block in self._blocks():
            yield block.text(openmetrics=openmetrics)
        yield _process(openmetrics=openmetrics)

    def _blocks(self) -> Iterator[FamilyText]:
        yield from self._requests.collect()
        yield from self._pool.collect()
        yield from expose(families.SCHEDULER_ATTEMPTS, self._attempts.items())
        yield from expose(families.SCHEDULER_SECONDS, [((), self._scheduling)])
        yield from expose(families.PROCESSING_SECONDS, [((), self._processing)])
        outcomes = [((outcome.value,), times) for outcome, times in self._outcomes.items()]
        yield from expose(families.OUTCOMES, outcomes)
        yield from expose(families.SCRAPE_FAILURES, [((), self._scrape_failures)])
        size = self._sources.index_size()
        yield from expose(families.INDEX_SIZE, [((_INDEX, _INDEX), size)])
        yield from expose(families.KV_EVENTS, self._sources.kv_events().items())
        causes = self._sources.left_as_text().items()
        yield from expose(families.TEXT_INSTEAD, [((cause,), times) for cause, times in causes])
        build = (self._sources.commit, self._sources.build_ref)
        yield from expose(families.INFO, [(build, 1)])


def _process(*, openmetrics: bool) -> str:
    """Return the `process_*` families."""
    # Imported at the first page: it takes long, and is not needed to start.
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # noqa: PLC0415
    from prometheus_client.openmetrics import exposition  # noqa: PLC0415

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    write = exposition.generate_latest if openmetrics else generate_latest
    text: str = write(registry).decode()
    return text
