"""Messages of a publisher of KV events: one, those that wait, and those that were seen.

A message is three frames: a topic `PREFIX<pod>@<model>`, its number (8 bytes, big-endian), and a
payload, which this file does not read.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from epp.protocol.kvevents.notices import Anomaly

FRAMES = 3
_SEQUENCE_BYTES = 8
_REMEMBERED = 1024
_SHOWN = 200


class PublishedMessage(msgspec.Struct, frozen=True):
    """One batch under its number. `model` is the base model's name, "" where the topic has none."""

    sequence: int
    payload: bytes
    model: str = ""

    @property
    def digest(self) -> int:
        """Tells batches of one number apart: each has its time in it."""
        return xxh3_64_intdigest(self.payload)


def read_message(frames: Sequence[bytes], topic_prefix: str) -> PublishedMessage | Anomaly:
    """Read the frames of one message, or say what is wrong with them."""
    if len(frames) != FRAMES or len(frames[1]) != _SEQUENCE_BYTES:
        return Anomaly("frames", f"{[len(frame) for frame in frames[: FRAMES + 2]]} bytes")
    topic = frames[0].decode("utf-8", "replace")
    if not topic.startswith(topic_prefix):
        return Anomaly("topic", topic[:_SHOWN])
    model = topic.split("@", 2)[-1] if topic.count("@") > 1 else ""
    return PublishedMessage(int.from_bytes(frames[1], "big"), frames[2], model)


class Backlog:
    """Messages that wait for earlier ones; `full` beyond `most` of them, or `most_bytes`."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._messages: dict[int, PublishedMessage] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def full(self) -> bool:
        """Whether more wait than may."""
        return len(self._messages) > self._most or self._bytes > self._most_bytes

    def add(self, message: PublishedMessage) -> None:
        """Let one wait."""
        self._messages[message.sequence] = message
        self._bytes += len(message.payload)

    def take(self) -> list[PublishedMessage]:
        """Take all of them out, in order."""
        messages, self._messages, self._bytes = self._messages, {}, 0
        return [messages[number] for number in sorted(messages)]


class MessageHistory:
    """The digests of the messages seen last."""

    def __init__(self) -> None:
        self._digests: OrderedDict[int, int] = OrderedDict()

    def add(self, message: PublishedMessage) -> None:
        """Remember one, and forget the oldest of too many."""
        self._digests[message.sequence] = message.digest
        if len(self._digests) > _REMEMBERED:
            self._digests.popitem(last=False)

    def has(self, message: PublishedMessage) -> bool:
        """Whether this very message was seen."""
        return self._digests.get(message.sequence) == message.digest

    def has_other(self, message: PublishedMessage) -> bool:
        """Whether another message was seen under this number."""
        return self._digests.get(message.sequence, message.digest) != message.digest

    def clear(self) -> None:
        """Forget all."""
        self._digests.clear()
