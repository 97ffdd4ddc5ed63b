"""Reads the KV event batches of vLLM and SGLang, a part at a time.

A payload is a msgpack array `[time, events, rank?]` (vLLM 0.32 `vllm/distributed/kv_events.py`,
SGLang 0.5 `sglang/srt/disaggregation/kv_events.py`).
"""

from collections.abc import Iterator, Sequence

import msgspec

from epp.model.kv_changes import BlocksRemoved, BlocksStored, Change
from epp.protocol.kvevents.arrays import array_head
from epp.protocol.kvevents.events import UNREADABLE, read_event

MAX_PAYLOAD_BYTES = 1 << 20
"""Larger payloads are not read: one step of an engine stores no more than its batch of tokens.

32,768 tokens in blocks of 16, with digests as hashes, are 300 KB.
"""
MAX_EVENTS = 1 << 15
"""Batches of more events are not read. SGLang with pages of one token sends one for each."""
MAX_BLOCKS = 1 << 15
"""Batches that name more blocks in all their events are not read: the bound on events, by which
one step of an engine stores no more tokens.
"""
_MOST = 128
"""Events, and blocks in them, after which a part is over: a millisecond or less."""
_BLOCK_BYTES = 256
"""Bytes of token ids that count as a block."""
_CLEAR = 32
"""Blocks that a clear counts as, unless it follows one: what is empty stays so."""


class UnreadableBatch(msgspec.Struct, frozen=True):
    """A payload that is not a batch, and why."""

    reason: str


class _Batch(msgspec.Struct, array_like=True):
    time: float
    events: msgspec.Raw
    rank: int | None = None


class _Time(msgspec.Struct, array_like=True):
    time: float


class Batch:
    """One payload, of which `next_part` reads the changes in their order.

    `time` is the engine's clock, in Unix seconds. `rank` is the data-parallel rank, None if not
    sent. Of what was read, `unknown` counts events of unknown types, which do not change the
    cache; `malformed` counts events of known types that could not be decoded, after which the
    cache's content may differ. `over` says that nothing is left to read; with a `problem` because
    the batch cannot be read any further.
    """

    def __init__(
        self, events: Sequence[msgspec.Raw], model: str, time: float, rank: int | None
    ) -> None:
        self.time = time
        self.rank = rank
        self.unknown = self.malformed = 0
        self.over = False
        self.problem = ""
        self._changes = self._read(events, model)

    def next_part(self) -> Sequence[Change]:
        """Read the next changes, of fewer than 256 blocks; none is left once it is `over`."""
        part: list[Change] = []
        size, before = 0, None
        for change in self._changes:
            size += _size(change, before)
            before = change
            if change is not None:
                part.append(change)
            if size >= _MOST:
                return part
        self.over = True
        return part

    def _read(self, events: Sequence[msgspec.Raw], model: str) -> Iterator[Change | None]:
        """Yield the changes, and None for an event without any."""
        blocks = 0
        for raw in events:
            try:
                event = read_event(raw, model)
                if event is None:
                    self.unknown += 1
                    yield None
                    continue
                blocks += event.blocks
                if blocks > MAX_BLOCKS:
                    self.problem = f"more than {MAX_BLOCKS} blocks"
                    return
                yield from event.changes
            except UNREADABLE:
                self.malformed += 1
                yield None


def _size(change: Change | None, before: Change | None) -> int:
    if isinstance(change, BlocksStored):
        return max(1, len(change.hashes), len(change.tokens) // _BLOCK_BYTES)
    if isinstance(change, BlocksRemoved):
        return max(1, len(change.hashes))
    return 1 if change is None or change == before else _CLEAR


def open_batch(payload: bytes, model: str) -> Batch | UnreadableBatch:
    """Find the events of one payload. Never raises, nor does reading them.

    `model` is the model of events without a LoRA adapter.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        return UnreadableBatch(f"{len(payload)} bytes, more than {MAX_PAYLOAD_BYTES}")
    try:
        batch = _BATCH.decode(payload)
        count, _ = array_head(batch.events)
        if count > MAX_EVENTS:  # said before an object is made of each
            return UnreadableBatch(f"{count} events, more than {MAX_EVENTS}")
        events = _EVENTS.decode(batch.events)
    except UNREADABLE as error:
        return UnreadableBatch(f"not a batch of events: {error}")
    return Batch(events, model, batch.time, batch.rank)


def time_of(payload: bytes) -> float | None:
    """Return the time of a batch (Unix seconds); None if the payload is not a batch."""
    try:
        return _TIME.decode(payload).time
    except UNREADABLE:
        return None


def rank_of(payload: bytes) -> int | None:
    """Return the data-parallel rank of a batch; None if it has none, or is not a batch."""
    try:
        return _BATCH.decode(payload).rank
    except UNREADABLE:
        return None


_BATCH = msgspec.msgpack.Decoder(_Batch)
_EVENTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_TIME = msgspec.msgpack.Decoder(_Time)
