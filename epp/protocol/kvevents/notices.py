"""Notices: the conclusions of `epp.protocol.kvevents.feed.Feed`, on which an adapter acts."""

from collections.abc import Sequence

import msgspec

from epp.model.kv_changes import Change


class CacheChanges(msgspec.Struct, frozen=True):
    """The engine's cache changed, in this order."""

    changes: Sequence[Change]


class ReplayRequest(msgspec.Struct, frozen=True):
    """Ask the publisher to replay its batches from sequence number `start` on.

    A replay in progress is void. Each frame that comes back goes to `Feed.replayed`; when none
    come, or no more, call `Feed.replay_failed`.
    """

    start: int


class StreamUp(msgspec.Struct, frozen=True):
    """The stream is followed. `complete`: every change since the cache was empty is known."""

    complete: bool


class StreamLost(msgspec.Struct, frozen=True):
    """The stream cannot be followed; the changes reported before are out of date."""

    reason: str


class Anomaly(msgspec.Struct, frozen=True):
    """Something was malformed or unexpected and is ignored; `kind` names it in a log event."""

    kind: str
    detail: str = ""


Notice = CacheChanges | ReplayRequest | StreamUp | StreamLost | Anomaly


class FeedCounts(msgspec.Struct):
    """Counts since the start: what was accepted, and what was not as it should be."""

    batches: int = 0
    """Batches that were accepted."""
    duplicates: int = 0
    """Batches that had come before."""
    gaps: int = 0
    """Times that batches were missing."""
    replays: int = 0
    """Replays that were requested."""
    restarts: int = 0
    """Publishers that began anew."""
    unreadable: int = 0
    """Batches that could not be read."""
    unknown: int = 0
    """Events of an unknown type."""
    malformed: int = 0
    """Events that could not be read."""
    disconnects: int = 0
    """Connections that broke."""
    unreachable: int = 0
    """Times that no publisher was there."""
