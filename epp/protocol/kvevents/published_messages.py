"""Messages of a KV event publisher: reads one, queues several, recognizes repeated ones.

vLLM 0.32 `vllm/distributed/kv_events.py` `ZmqEventPublisher`: a message has three frames, a topic
(`PREFIX<pod>@<model>` by llm-d's convention), a sequence number (8 bytes, big-endian), and a
payload, which is not read here.
"""

from collections.abc import Sequence

import msgspec
from cachetools import FIFOCache
from xxhash import xxh3_64_intdigest

from epp.protocol.kvevents.notices import Anomaly

FRAMES = 3
_SEQUENCE_BYTES = 8
_REMEMBERED_MESSAGES = 1024
"""Messages whose digests are kept."""
_MOST_WAITING, _MOST_WAITING_BYTES = 10_000, 64 << 20
"""The most messages that wait for earlier ones, and bytes of their payloads."""
_SHOWN_CHARACTERS = 200
"""Characters of an unexpected topic in a log line."""


class PublishedMessage(msgspec.Struct, frozen=True):
    """One batch and its sequence number. `model` is the base model; "" if the topic has none."""

    sequence: int
    payload: bytes
    model: str = ""

    @property
    def digest(self) -> int:
        """A digest of the payload: two batches of one number differ, as each has its time in it."""
        return xxh3_64_intdigest(self.payload)


def read_message(frames: Sequence[bytes], topic_prefix: str) -> PublishedMessage | Anomaly:
    """Read the frames of one message; an `Anomaly` for one without this topic prefix."""
    if len(frames) != FRAMES or len(frames[1]) != _SEQUENCE_BYTES:
        return Anomaly("frames", f"{[len(frame) for frame in frames[: FRAMES + 2]]} bytes")
    topic = frames[0].decode("utf-8", "replace")
    if not topic.startswith(topic_prefix):
        return Anomaly("topic", topic[:_SHOWN_CHARACTERS])
    model = topic.split("@", 2)[-1] if topic.count("@") > 1 else ""
    return PublishedMessage(int.from_bytes(frames[1], "big"), frames[2], model)


def publisher_of(frames: Sequence[bytes], topic_prefix: str) -> str:
    """Return a message's publisher by its topic: a pod's address or name; "" if it names none."""
    topic = frames[0].decode("utf-8", "replace") if len(frames) == FRAMES else ""
    parts = topic.split("@", 2)
    return parts[1] if topic.startswith(topic_prefix) and len(parts) > 1 else ""


class Backlog:
    """Messages that wait for earlier ones."""

    def __init__(self) -> None:
        self._messages: dict[int, PublishedMessage] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def full(self) -> bool:
        """Whether there are more than may wait."""
        return len(self._messages) > _MOST_WAITING or self._bytes > _MOST_WAITING_BYTES

    def add(self, message: PublishedMessage) -> None:
        """Add a message."""
        self._messages[message.sequence] = message
        self._bytes += len(message.payload)

    def drain(self) -> list[PublishedMessage]:
        """Return and remove all messages, ordered by sequence number."""
        messages, self._messages, self._bytes = self._messages, {}, 0
        return [messages[number] for number in sorted(messages)]


class MessageHistory:
    """The digests of the latest messages, by sequence number."""

    def __init__(self) -> None:
        self._digests: FIFOCache[int, int] = FIFOCache(_REMEMBERED_MESSAGES)

    def add(self, message: PublishedMessage) -> None:
        """Add a message; the oldest one is removed if there are too many."""
        self._digests[message.sequence] = message.digest

    def has(self, message: PublishedMessage) -> bool:
        """Whether this message was seen."""
        return self._digests.get(message.sequence) == message.digest

    def has_other(self, message: PublishedMessage) -> bool:
        """Whether another message was seen under this number."""
        return self._digests.get(message.sequence, message.digest) != message.digest
