"""What a publisher's stream says of one endpoint's cache, as events; its anomalies, as a log."""

from collections.abc import Callable, Sequence

import structlog

from epp.adapters.kvevents.publishers import SubscriptionSettings
from epp.model.endpoint import Endpoint
from epp.model.kv_changes import CacheChanged, CacheFeedLost, CacheFeedUp, Change
from epp.protocol.kvevents.feed import Feed, FeedSettings
from epp.protocol.kvevents.notices import (
    Anomaly,
    CacheChanges,
    Notice,
    ReplayRequest,
    StreamLost,
    StreamUp,
)

CacheEvent = CacheChanged | CacheFeedUp | CacheFeedLost

_log = structlog.get_logger(__name__)


class CacheFeed:
    """The stream of one endpoint: acts on the notices of its `feed`, passing events to `apply`.

    `start_replay` is called with the sequence number to replay from; None: nothing can be
    replayed. `lost` is whether the stream is. Each kind of anomaly is logged once.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        settings: SubscriptionSettings,
        apply: Callable[[CacheEvent], None],
        start_replay: Callable[[int], None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.lost = False
        self.feed = Feed(
            FeedSettings(
                topic_prefix=settings.topic_prefix,
                model=settings.model,
                rank=endpoint.rank,
                replay=start_replay is not None,
            )
        )
        self._apply = apply
        self._start_replay = start_replay
        self._warned: set[str] = set()

    def handle(self, notices: Sequence[Notice]) -> None:
        """Act on notices in order; consecutive changes become one event."""
        changes: list[Change] = []
        for notice in notices:
            if isinstance(notice, CacheChanges):
                changes += notice.changes
                continue
            self._pass_on(changes)
            changes = []
            self._handle_one(notice)
        self._pass_on(changes)

    def _pass_on(self, changes: Sequence[Change]) -> None:
        if changes:
            self._apply(CacheChanged(self.endpoint.id, changes))

    def _handle_one(self, notice: StreamUp | StreamLost | Anomaly | ReplayRequest) -> None:
        match notice:
            case StreamUp(complete):
                if self.lost:
                    _log.info("kv_events.back", endpoint=self.endpoint.id)
                self.lost = False
                self._apply(CacheFeedUp(self.endpoint.id, complete))
            case StreamLost(reason):
                if not self.lost:
                    _log.warning("kv_events.lost", endpoint=self.endpoint.id, reason=reason)
                self.lost = True
                self._apply(CacheFeedLost(self.endpoint.id, reason))
            case Anomaly(kind, detail):
                self.warn_once(f"kv_events.{kind}", {"detail": detail})
            case ReplayRequest(start):
                if self._start_replay is not None:
                    self._start_replay(start)

    def warn_once(self, event: str, details: dict[str, str]) -> None:
        """Log an anomaly, unless one of its kind was logged before."""
        if event not in self._warned:
            self._warned.add(event)
            _log.warning(event, endpoint=self.endpoint.id, **details)
