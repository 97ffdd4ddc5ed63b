"""One publisher's stream of KV event batches: what is missing, what to ask for, what to believe.

A state machine without sockets: frames go in, notices come out. A publisher numbers its batches
from 0 on, sends each once to whoever listens (ZMQ PUB), and may have a second socket that sends
the last ones again from a given number on. This file knows neither, and no clock.

What is believed is never more than what the engine said: where batches are missing and cannot be
had again, everything before them is taken back (`Cleared.GAP`). A publisher that began anew
numbers from 0 again, but that may be seen late, at a number beyond the last: so a request to send
again always starts with the last batch that was seen, and if that comes back as another one, the
engine is another one.
"""

from collections.abc import Sequence
from math import inf

import msgspec

from epp.model.kv_changes import BlocksCleared, Cleared
from epp.protocol.kvevents.batches import UnreadableBatch, read_batch, time_of
from epp.protocol.kvevents.notices import (
    Anomaly,
    CacheChanges,
    FeedCounts,
    Notice,
    ReplayRequest,
    StreamLost,
    StreamUp,
)
from epp.protocol.kvevents.published_messages import (
    FRAMES,
    Backlog,
    MessageHistory,
    PublishedMessage,
    read_message,
)

_MOST_ASKS = 3
_MOST_UNREADABLE = 3


class FeedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of a publisher.

    Topics are `PREFIX<pod>@<model>`; what has another `topic_prefix` is left out. `model` names
    the base model where the topic does not. `rank`, where not None, is the data-parallel rank
    whose batches count. `replay`: it has a socket that sends batches again. While it does, up to
    `most_waiting` new batches, of `most_waiting_bytes` in all, wait.
    """

    topic_prefix: str = "kv@"
    model: str = ""
    rank: int | None = None
    replay: bool = False
    most_waiting: int = 10_000
    most_waiting_bytes: int = 64 << 20


class Feed:
    """One publisher as it is heard. Every method returns what follows from its call."""

    def __init__(self, settings: FeedSettings) -> None:
        self.counts = FeedCounts()
        self._settings = settings
        self._replays = settings.replay
        self._out: list[Notice] = []
        self._forget()

    def _forget(self) -> None:
        self._next: int | None = None  # the number expected, None before the first
        self._up = self._complete = False
        self._asking = self._answered = self._void = False
        self._asks = 0
        self._unreadable = 0
        self._latest = -inf  # the engine's time on this connection
        self._seen = MessageHistory()
        self._waiting = Backlog(self._settings.most_waiting, self._settings.most_waiting_bytes)

    # What happens.

    def connected(self) -> list[Notice]:
        """The publisher is there, for the first time or again: catch up where that can be done."""
        self._replays, self._asks = self._settings.replay, 0
        self._waiting.take()
        self._latest = -inf
        if self._replays:
            self._ask()
        else:
            self._tell(complete=self._up and self._complete)
        return self._take_out()

    def disconnected(self) -> None:
        """The connection broke; with replay, what comes waits until `connected` has checked it."""
        self._asking = self._replays

    def lost(self, reason: str) -> list[Notice]:
        """The publisher is gone for good, or was never there: start from nothing next time."""
        self._forget()
        self._out.append(StreamLost(reason))
        return self._take_out()

    def receive(self, frames: Sequence[bytes]) -> list[Notice]:
        """Take in what the publisher sends to everybody."""
        message = self._message(frames)
        if message is not None:
            (self._hold if self._asking else self._advance)(message)
        return self._take_out()

    def replayed(self, frames: Sequence[bytes]) -> list[Notice]:
        """Take in what the publisher sends again; an empty payload ends it."""
        if not self._asking:
            return []
        if len(frames) >= FRAMES and not frames[-1]:
            self._caught_up()
            return self._take_out()
        message = self._message(frames[-FRAMES:])
        if message is not None and not self._void:
            self._again(message)
        return self._take_out()

    def replay_failed(self) -> list[Notice]:
        """Nothing, or nothing more, was sent again: go on with what there is."""
        if self._asking:
            self._asking = False
            self._asks += 1
            if self._asks >= _MOST_ASKS:
                self._replays = False
            if self._next and not self._answered:  # nothing says that it is the same engine
                self._clear(Cleared.GAP, None)
            self._resume(ask=self._replays and self._void)
        return self._take_out()

    # What follows.

    def _take_out(self) -> list[Notice]:
        out, self._out = self._out, []
        return out

    def _odd(self, kind: str, detail: str = "") -> None:
        self._out.append(Anomaly(kind, detail))

    def _message(self, frames: Sequence[bytes]) -> PublishedMessage | None:
        message = read_message(frames, self._settings.topic_prefix)
        if isinstance(message, PublishedMessage):
            return message
        self._out.append(message)
        return None

    def _ask(self) -> None:
        """Ask for everything from the last batch that was seen on, or from the first."""
        self._asking, self._answered, self._void = True, False, False
        self.counts.replays += 1
        self._out.append(ReplayRequest(max(0, (self._next or 0) - 1)))

    def _hold(self, message: PublishedMessage) -> None:
        self._waiting.add(message)
        if self._waiting.full:
            self._odd("backlog", f"{len(self._waiting)} batches waited for earlier ones")
            self._asking = False
            self._clear(Cleared.GAP, None)
            self._waiting.take()

    def _advance(self, message: PublishedMessage) -> None:
        """Take in a batch that nothing is waited for with."""
        number = message.sequence
        if self._next is None:
            self._start_at(number)
        elif number > self._next:
            self._miss(message)
            return
        elif number < self._next:
            if self._is_old(message):
                self.counts.duplicates += 1
                return
            self._restart()
            if number:
                self._miss(message)
                return
        self._read(message)

    def _is_old(self, message: PublishedMessage) -> bool:
        """Tell what comes twice, or too late, from an engine that counts from 0 again."""
        time = time_of(message.payload)
        return time is None or time < self._latest or self._seen.has(message)

    def _miss(self, message: PublishedMessage) -> None:
        """Ask for what is missing before a batch, or do without."""
        self.counts.gaps += 1
        if self._replays:
            self._ask()
            self._hold(message)
        else:
            self._clear(Cleared.GAP, message.sequence)
            self._read(message)

    def _again(self, message: PublishedMessage) -> None:
        """Take in a batch that was asked for."""
        number, first, self._answered = message.sequence, not self._answered, True
        if self._next is None:
            self._start_at(number)
        elif number < self._next:
            if not self._seen.has_other(message):
                return
            self._restart()
            self._void = number > 0  # else this answer is what would be asked for
        elif first and number:
            # What came before is not kept any more, and nothing says that it is one sequence.
            self._clear(Cleared.GAP, number)
        elif number > self._next:
            self._void = True  # more than a ROUTER's queue held was dropped: ask for the rest
        if not self._void:
            self._read(message)

    def _caught_up(self) -> None:
        """All that the publisher has was sent again."""
        self._asking = False
        if not self._answered and not self._void:
            if self._next:  # what was seen last is not there: it began anew
                self._restart()
                self._void = True
            else:
                self._start_at(0)
        self._resume(ask=self._void)

    def _resume(self, *, ask: bool) -> None:
        """Go on with what waited, or ask again."""
        if ask and self._asks < _MOST_ASKS:
            self._asks += 1
            self._ask()
            return
        if self._next is not None or not self._waiting:
            self._tell(complete=self._complete)
        for message in self._waiting.take():
            if self._asking:
                self._hold(message)
            elif self._next is None or message.sequence >= self._next:
                self._continue(message)

    def _continue(self, message: PublishedMessage) -> None:
        """Take in a batch that waited; a gap before it was asked for in vain."""
        if self._next is not None and message.sequence > self._next:
            self._asks += 1
            if not self._replays or self._asks >= _MOST_ASKS:
                self._clear(Cleared.GAP, message.sequence)
        self._advance(message)

    def _start_at(self, number: int) -> None:
        """Begin a sequence; before its first batch the engine held nothing."""
        if number == 0:
            self._out.append(CacheChanges((BlocksCleared(Cleared.RESTART),)))
        self._next = number
        self._tell(complete=number == 0)

    def _restart(self) -> None:
        """The engine is another one, with an empty cache."""
        self.counts.restarts += 1
        self._seen.clear()
        self._start_at(0)

    def _clear(self, reason: Cleared, number: int | None) -> None:
        """Take back what was said, and go on with `number`, or with whichever comes next."""
        self._out.append(CacheChanges((BlocksCleared(reason),)))
        self._seen.clear()
        self._next = number
        self._tell(complete=False)

    def _tell(self, *, complete: bool) -> None:
        """Say that the stream is followed, where that is news."""
        if not self._up or complete != self._complete:
            self._out.append(StreamUp(complete))
        self._up, self._complete = True, complete

    def _read(self, message: PublishedMessage) -> None:
        """Take in the batch whose turn it is."""
        self._next = message.sequence + 1
        self._asks = 0
        self._seen.add(message)
        model = message.model or self._settings.model
        if not model:
            self._odd("model", "neither the topic nor the settings name it")
        batch = read_batch(message.payload, model)
        if isinstance(batch, UnreadableBatch):
            self._cannot_read(batch.reason)
            return
        self.counts.batches += 1
        self._unreadable, self._latest = 0, batch.time
        self._count(batch.unknown, batch.malformed)
        if batch.rank is not None and self._settings.rank not in {None, batch.rank}:
            self._odd("rank", f"of rank {batch.rank}, not {self._settings.rank}")
            return
        self._tell(complete=self._complete or BlocksCleared() in batch.changes)
        if batch.changes:
            self._out.append(CacheChanges(batch.changes))

    def _count(self, unknown: int, malformed: int) -> None:
        self.counts.unknown += unknown
        self.counts.malformed += malformed
        if unknown:
            self._odd("unknown", "events of a type that is not known")
        if malformed:
            self._odd("malformed", "events that cannot be read")

    def _cannot_read(self, reason: str) -> None:
        """One such batch is a gap; several in a row are no stream of ours."""
        self.counts.unreadable += 1
        self._unreadable += 1
        self._odd("unreadable", reason)
        self._out.append(CacheChanges((BlocksCleared(Cleared.GAP),)))
        if self._unreadable < _MOST_UNREADABLE:
            self._tell(complete=False)
        elif self._up:
            self._up = False
            self._out.append(StreamLost(f"batches cannot be read: {reason}"))
