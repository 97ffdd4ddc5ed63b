"""What is counted, from the moment a request is placed to the end of its exchange."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from epp.adapters.telemetry import families
from epp.adapters.telemetry.cardinality import MOST_VALUES, OTHER
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.pool_gauges import CacheView, PoolGauges, PoolView
from epp.adapters.telemetry.requests import RequestMetrics
from epp.adapters.telemetry.series import FamilyText, Labels, expose
from epp.errors import NoEndpoints
from epp.model.request import Decision, InferenceRequest, Outcome, RequestId
from epp.protocol.extproc.record import RequestRecord

_INDEX: Final = "prefix-index"
_MOST_ENDPOINTS = 10 * MOST_VALUES


@dataclass(frozen=True, slots=True)
class MetricSources:
    """What is looked up when the metrics are read, and what never changes.

    `pool` gives every endpoint with its load and whether it can be picked, `caches` what is
    believed of their caches, `index_size` the number of blocks that the prefix index holds;
    `kv_events` counts batches by endpoint and outcome, `left_as_text` prompts by cause;
    `under_way` tells whether a request that nobody observes is believed to run still.
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
    """Counts what it is told, and shows it, with `process_*`, as a metrics page.

    At most `most_flows` combinations of model names, fairness id and priority are told apart.
    Every method but `page` takes a few microseconds. Not to be called from several threads.
    """

    def __init__(self, sources: MetricSources, *, most_flows: int = MOST_VALUES) -> None:
        self._sources = sources
        self._pool = PoolGauges(sources.pool_name, sources.pool, sources.caches)
        self._flows = RequestMetrics(sources.under_way, most_flows)
        self._attempts: dict[Labels, int] = {}
        self._outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self._scheduling = Histogram(families.SCHEDULER_BOUNDS)
        self._processing = Histogram(families.PROCESSING_BOUNDS)
        self._scrape_failures = 0

    def scheduled(self, request: InferenceRequest, decision: Decision, seconds: float) -> None:
        """Count a pick that took `seconds`; the request runs until it is `finished`, or longer."""
        self._scheduling.observe(seconds)
        endpoint = decision.endpoint
        place = (endpoint.name, endpoint.namespace, str(endpoint.port))
        self._attempt("success", request.target_model or request.model, place)
        self._flows.start(request)

    def finished(self, record: RequestRecord) -> None:
        """Count the end of an exchange, whatever it was; comes once for each."""
        if record.outcome is not None:
            self._outcomes[record.outcome] += 1
        if record.decided_at is not None:
            self._processing.observe(record.decided_at - record.received_at)
        elif isinstance(record.error, NoEndpoints):
            request = record.request
            self._attempt("failure", request.target_model or request.model if request else "")
        self._flows.finish(record)

    def scrape_failed(self) -> None:
        """Count a poll of an endpoint that failed."""
        self._scrape_failures += 1

    def _attempt(self, status: str, model: str, place: tuple[str, str, str] = ("", "", "")) -> None:
        key = (status, self._flows.model(model), *place)
        if key not in self._attempts and len(self._attempts) >= _MOST_ENDPOINTS:
            key = (status, OTHER, OTHER, OTHER, OTHER)
        self._attempts[key] = self._attempts.get(key, 0) + 1

    def page(self, *, openmetrics: bool = False) -> Iterator[str]:
        """Write the metrics page in Prometheus' text format, or in OpenMetrics'.

        It comes in pieces, a family each, so that the event loop can turn between them.
        """
        for block in self._blocks():
            yield block.text(openmetrics=openmetrics)
        yield _process(openmetrics=openmetrics)

    def _blocks(self) -> Iterator[FamilyText]:
        yield from self._flows.collect()
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
    """Write what is known of this process."""
    # Imported here because it is slow, and a start can do without.
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # noqa: PLC0415
    from prometheus_client.openmetrics import exposition  # noqa: PLC0415

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    write = exposition.generate_latest if openmetrics else generate_latest
    text: str = write(registry).decode()
    return text
