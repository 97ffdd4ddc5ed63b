"""One publisher's stream of KV event batches: finds gaps, asks for replays, reports changes.

A state machine without sockets and without a clock: frames go in, and notices come out, a part of a
batch at a time. A publisher (vLLM 0.32 `vllm/distributed/kv_events.py` `ZmqEventPublisher`) numbers
its batches from 0, sends each once to all subscribers (ZMQ PUB), and may have a second socket
(ROUTER) that replays the latest ones from a given number on.

The changes reported never exceed what the engine said: if batches are missing and cannot be
replayed, everything before them is invalidated (`Cleared.GAP`). A publisher that restarted counts
from 0 again, which may be noticed late, at a number beyond the last. So every replay starts with
the last batch that was seen; if another one comes back under its number, the engine restarted.
"""

from collections import deque
from collections.abc import Sequence
from math import inf

import msgspec

from epp.model.kv_changes import BlocksCleared, Change, Cleared
from epp.protocol.kvevents.batches import Batch, UnreadableBatch, open_batch, time_of
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

_MAX_ATTEMPTS = 3
"""Replays requested in a row without a batch accepted; after them the gap stays."""
_MAX_UNREADABLE = 3
"""Unreadable batches in a row after which the stream counts as lost."""


class FeedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one publisher's stream.

    Topics are `PREFIX<pod>@<model>`; messages without `topic_prefix` are ignored. `model` is the
    base model of topics that name none. With a `rank`, batches of other data-parallel ranks are
    ignored. `replay`: the publisher has a replay socket.
    """

    topic_prefix: str = "kv@"
    model: str = ""
    rank: int | None = None
    replay: bool = False


class Feed:
    """One publisher's stream. Every method but `disconnected` returns the notices that follow."""

    def __init__(self, settings: FeedSettings) -> None:
        self.counts = FeedCounts()
        self._settings = settings
        self._notices: list[Notice] = []
        self._topic = settings.topic_prefix.encode()  # of the latest message
        self._reset()

    def _reset(self) -> None:
        self._expected: int | None = None  # the next sequence number; None before the first
        self._up = self._complete = False
        self._replaying = self._replay_begun = self._replay_void = False
        self._attempts = 0
        self._unreadable = 0
        self._latest_time = -inf  # seconds of the engine's clock, on this connection
        self._history = MessageHistory()
        self._backlog = Backlog()
        self._due: deque[PublishedMessage] = deque()  # queued batches that wait no longer
        self._reading: Batch | None = None

    @property
    def behind(self) -> bool:
        """Whether a batch is to be read on, or queued ones are to be accepted, by `catch_up`."""
        return self._reading is not None or bool(self._due)

    # Input.

    def connected(self) -> list[Notice]:
        """Handle a connection, the first or a later one: request a replay if that is possible."""
        self._attempts = 0
        self._backlog.drain()
        self._due.clear()
        self._latest_time = -inf
        if self._settings.replay:
            self._request_replay()
        else:
            self._report_up(complete=self._up and self._complete)
        return self._drain()

    def disconnected(self) -> None:
        """Handle a broken connection; with replay, messages are queued until `connected`."""
        self.counts.disconnects += 1
        self._replaying = self._settings.replay

    def lost(self, reason: str) -> list[Notice]:
        """Handle a publisher that is gone, or was never there: the next one starts from nothing."""
        self._reset()
        self._notices.append(StreamLost(reason))
        return self._drain()

    def catch_up(self) -> list[Notice]:
        """Read the next part of a batch, or accept the first of those queued during a replay.

        There may be thousands. Messages that come meanwhile are handled after all that is left.
        """
        self._go_on()
        return self._drain()

    def receive(self, frames: Sequence[bytes]) -> list[Notice]:
        """Handle a message of the PUB socket."""
        while self.behind:
            self._go_on()
        message = self._message(frames)
        if message is not None:
            self._topic = frames[0]
            (self._queue if self._replaying else self._accept)(message)
        return self._drain()

    def replayed(self, frames: Sequence[bytes]) -> list[Notice]:
        """Handle a message of the replay socket; one with an empty payload ends the replay."""
        while self.behind:
            self._go_on()
        if not self._replaying:
            return self._drain()
        # vLLM `_service_replay`: batches come as (topic, number, payload) after an empty frame,
        # and ("", END_SEQ, "") ends them. SGLang, and vLLM before 0.26, leave out the topic.
        if frames and not frames[-1]:
            self._on_replay_end()
            return self._drain()
        topic = frames[-FRAMES] if len(frames) >= FRAMES else b""
        message = self._message((topic or self._topic, *frames[-2:]))
        if message is not None and not self._replay_void:
            self._accept_replayed(message)
        return self._drain()

    def replay_failed(self) -> list[Notice]:
        """Handle a replay that sent nothing, or nothing more: go on with the batches that came."""
        while self.behind:
            self._go_on()
        if self._replaying:
            self._replaying = False
            if self._expected and not self._replay_begun:  # it may be another engine
                self._invalidate(None)
            self._resume(again=self._replay_void)
        return self._drain()

    # Consequences.

    def _drain(self) -> list[Notice]:
        drained, self._notices = self._notices, []
        return drained

    def _warn(self, kind: str, detail: str = "") -> None:
        self._notices.append(Anomaly(kind, detail))

    def _message(self, frames: Sequence[bytes]) -> PublishedMessage | None:
        message = read_message(frames, self._settings.topic_prefix)
        if isinstance(message, PublishedMessage):
            return message
        self._notices.append(message)
        return None

    def _request_replay(self) -> None:
        """Request a replay from the last batch that was seen, or from the first."""
        self._replaying, self._replay_begun, self._replay_void = True, False, False
        self.counts.replays += 1
        self._notices.append(ReplayRequest(max(0, (self._expected or 0) - 1)))

    def _queue(self, message: PublishedMessage) -> None:
        self._backlog.add(message)
        if self._backlog.full:
            self._warn("backlog", f"{len(self._backlog)} batches waited for earlier ones")
            self._replaying = False
            self._invalidate(None)
            self._backlog.drain()

    def _accept(self, message: PublishedMessage) -> None:
        """Accept a batch while no replay is in progress."""
        number = message.sequence
        if self._expected is None:
            self._start_sequence(number)
        elif number > self._expected:
            self._on_gap(message)
            return
        elif number < self._expected:
            if self._is_old(message):
                self.counts.duplicates += 1
                return
            self._on_restart()
            if number:
                self._on_gap(message)
                return
        self._apply(message)

    def _is_old(self, message: PublishedMessage) -> bool:
        """Whether a batch came twice or too late, and is not of an engine that restarted."""
        time = time_of(message.payload)
        return time is None or time < self._latest_time or self._history.has(message)

    def _on_gap(self, message: PublishedMessage) -> None:
        """Request the batches missing before this one, or invalidate what was reported."""
        self.counts.gaps += 1
        if self._settings.replay:
            self._request_replay()
            self._queue(message)
        else:
            self._invalidate(message.sequence)
            self._apply(message)

    def _accept_replayed(self, message: PublishedMessage) -> None:
        """Accept a batch of a replay."""
        number, first, self._replay_begun = message.sequence, not self._replay_begun, True
        if self._expected is None:
            self._start_sequence(number)
        elif number < self._expected:
            if not self._history.has_other(message):
                return
            self._on_restart()
            self._replay_void = number > 0  # a replay from 0 is the one that is needed
        elif first and number:
            # The publisher does not keep earlier batches; whether these follow them is unknown.
            self._invalidate(number)
        elif number > self._expected:
            # zmq_socket(3): a ROUTER drops messages beyond its high-water mark. Request the rest.
            self._replay_void = True
        if not self._replay_void:
            self._apply(message)

    def _on_replay_end(self) -> None:
        """Handle the end of a replay."""
        self._replaying = False
        if not self._replay_begun and not self._replay_void:
            if self._expected:  # the last batch seen is not there: the engine restarted
                self._on_restart()
                self._replay_void = True
            else:
                self._start_sequence(0)
        self._resume(again=self._replay_void)

    def _resume(self, *, again: bool) -> None:
        """Accept the queued batches, or request another replay."""
        if again and self._attempts < _MAX_ATTEMPTS:
            self._attempts += 1
            self._request_replay()
            return
        self._report_up(complete=self._complete)
        self._due += self._backlog.drain()

    def _go_on(self) -> None:
        """Do the first part of what is left, if anything."""
        if self._reading is not None:
            self._read_part(self._reading)
        elif self._due:
            self._accept_due()

    def _accept_due(self) -> None:
        message = self._due.popleft()
        if self._expected is None or message.sequence >= self._expected:
            self._accept_queued(message)
        while self._due and self._replaying:  # again: what follows waits for it
            self._queue(self._due.popleft())

    def _accept_queued(self, message: PublishedMessage) -> None:
        """Accept a queued batch; the replay did not fill a gap before it."""
        if self._expected is not None and message.sequence > self._expected:
            self._attempts += 1
            if self._attempts >= _MAX_ATTEMPTS:
                self._invalidate(message.sequence)
        self._accept(message)

    def _start_sequence(self, number: int) -> None:
        """Start a sequence; before batch 0 the engine's cache is empty."""
        if number == 0:
            self._notices.append(CacheChanges((BlocksCleared(Cleared.RESTART),)))
        self._expected = number
        self._report_up(complete=number == 0)

    def _on_restart(self) -> None:
        """Start again from 0: the engine restarted, with an empty cache."""
        self.counts.restarts += 1
        self._start_sequence(0)

    def _invalidate(self, number: int | None) -> None:
        """Invalidate all reported changes; go on with `number`, None standing for any number."""
        self._notices.append(CacheChanges((BlocksCleared(Cleared.GAP),)))
        self._expected = number
        self._report_up(complete=False)

    def _report_up(self, *, complete: bool) -> None:
        """Report that the stream is followed, unless that was reported last."""
        if not self._up or complete != self._complete:
            self._notices.append(StreamUp(complete))
        self._up, self._complete = True, complete

    def _apply(self, message: PublishedMessage) -> None:
        """Report the changes of the batch that is next in the sequence."""
        self._expected = message.sequence + 1
        self._attempts = 0
        self._history.add(message)
        model = message.model or self._settings.model
        if not model:
            self._warn("model", "neither the topic nor the settings name it")
        batch = open_batch(message.payload, model)
        if isinstance(batch, UnreadableBatch):
            self._on_unreadable(batch.reason)
            return
        self._latest_time = batch.time
        if batch.rank is not None and self._settings.rank not in {None, batch.rank}:
            self._unreadable = 0
            self.counts.batches += 1
            self._warn("rank", f"of rank {batch.rank}, not {self._settings.rank}")
            return
        self._reading = batch
        self._read_part(batch)

    def _read_part(self, batch: Batch) -> None:
        """Report the next changes of the batch that is read."""
        changes = batch.next_part()
        cleared = BlocksCleared() in changes
        if cleared:
            changes = _cleared_once(changes)
        if not self._unreadable or (batch.over and not batch.problem):
            self._report_up(complete=self._complete or cleared)
        if changes:
            self._notices.append(CacheChanges(changes))
        if not batch.over:
            return
        self._reading = None
        self._count(batch.unknown, batch.malformed)
        if batch.problem:
            self._on_unreadable(batch.problem)
        else:
            self.counts.batches += 1
            self._unreadable = 0

    def _count(self, unknown: int, malformed: int) -> None:
        self.counts.unknown += unknown
        self.counts.malformed += malformed
        if unknown:
            self._warn("unknown", "events of a type that is not known")
        if malformed:
            self._warn("malformed", "events that cannot be read")

    def _on_unreadable(self, reason: str) -> None:
        """Handle an unreadable batch as a gap; several in a row as a lost stream."""
        self.counts.unreadable += 1
        self._unreadable += 1
        self._warn("unreadable", reason)
        self._notices.append(CacheChanges((BlocksCleared(Cleared.GAP),)))
        if self._unreadable < _MAX_UNREADABLE:
            self._report_up(complete=False)
        elif self._up:
            self._up = False
            self._notices.append(StreamLost(f"batches cannot be read: {reason}"))


def _cleared_once(changes: Sequence[Change]) -> Sequence[Change]:
    """Leave out clears that follow another one: what is empty stays so."""
    return [
        change
        for before, change in zip((None, *changes), changes, strict=False)
        if change != before or not isinstance(change, BlocksCleared)
    ]
