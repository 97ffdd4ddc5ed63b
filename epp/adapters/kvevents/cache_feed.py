"""What a publisher's stream says of one endpoint's cache, as events; its anomalies, as a log."""

from collections import deque
from collections.abc import Callable, Sequence

from epp.adapters.kvevents.publishers import SubscriptionSettings
from epp.adapters.kvevents.turns import EventTurns
from epp.model.endpoint import Endpoint
from epp.model.kv_changes import CacheChanged, CacheFeedLost, CacheFeedUp
from epp.protocol.kvevents.feed import Feed, FeedSettings
from epp.protocol.kvevents.notices import (
    Anomaly,
    CacheChanges,
    Notice,
    ReplayRequest,
    StreamLost,
    StreamUp,
)
from epp.system.logs import Log

CacheEvent = CacheChanged | CacheFeedUp | CacheFeedLost

_log = Log(__name__)


class CacheFeed:
    """The stream of one endpoint: acts on the notices of its `feed`, passing events to `apply`.

    `start_replay` is called with the sequence number to replay from; None: nothing can be
    replayed. `lost` says whether the stream is lost. Each kind of anomaly is logged once. Once it
    is `ended`, the rest is ignored.

    A message may take more than one turn of the loop, so callers await `catch_up` after each.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        settings: SubscriptionSettings,
        apply: Callable[[CacheEvent], None],
        start_replay: Callable[[int], None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.lost = self.ended = False
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
        self._waiting: deque[CacheChanges | StreamUp | StreamLost | Anomaly] = deque()

    def handle(self, notices: Sequence[Notice]) -> None:
        """Act on notices in order, up to the first changes of a cache and on these."""
        for notice in notices:
            if not isinstance(notice, ReplayRequest):
                self._waiting.append(notice)
            elif self._start_replay is not None:  # what comes of it is said later
                self._start_replay(notice.start)
        self._next_part()

    @property
    def behind(self) -> bool:
        """Whether anything is left for `catch_up`."""
        return not self.ended and (bool(self._waiting) or self.feed.behind)

    async def catch_up(self, turns: EventTurns) -> None:
        """Act on all that is left, of batches that waited for a replay too, in turns."""
        while self.behind:
            turns.done()
            await turns.take()
            if self.ended:
                return
            if self._waiting:
                self._next_part()
            else:
                self.handle(self.feed.catch_up())

    def _next_part(self) -> None:
        """Act on notices up to the first changes, and on these."""
        while self._waiting and not self.ended:
            first = self._waiting.popleft()
            if isinstance(first, CacheChanges):
                self._apply(CacheChanged(self.endpoint.id, first.changes))
                return
            self._handle_one(first)

    def _handle_one(self, notice: StreamUp | StreamLost | Anomaly) -> None:
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

    def warn_once(self, event: str, details: dict[str, str]) -> None:
        """Log an anomaly, unless one of its kind was logged before."""
        if event not in self._warned:
            self._warned.add(event)
            _log.warning(event, endpoint=self.endpoint.id, **details)
