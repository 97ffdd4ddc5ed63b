"""What follows from what a publisher of KV events sent, as values.

`epp.protocol.kvevents.feed.Feed` says it; an adapter acts on it.
"""

from collections.abc import Sequence

import msgspec

from epp.model.kv_changes import Change


class CacheChanges(msgspec.Struct, frozen=True):
    """The engine's cache changed, in this order."""

    changes: Sequence[Change]


class ReplayRequest(msgspec.Struct, frozen=True):
    """Ask the publisher to send again what it has from number `start` on.

    A request under way is void. Each frame that comes back goes to `Feed.replayed`; when none
    come, or none more, `Feed.replay_failed` is to be called.
    """

    start: int


class StreamUp(msgspec.Struct, frozen=True):
    """The stream is followed; `complete`: from an empty cache on."""

    complete: bool


class StreamLost(msgspec.Struct, frozen=True):
    """The stream cannot be followed; what was said before is out of date."""

    reason: str


class Anomaly(msgspec.Struct, frozen=True):
    """Something is not as it should be, and is left out; `kind` names it for a log line."""

    kind: str
    detail: str = ""


Notice = CacheChanges | ReplayRequest | StreamUp | StreamLost | Anomaly


class FeedCounts(msgspec.Struct):
    """Batches taken in, and what was not as it should be, since the start."""

    batches: int = 0
    duplicates: int = 0
    gaps: int = 0
    replays: int = 0
    restarts: int = 0
    unreadable: int = 0
    unknown: int = 0
    malformed: int = 0
