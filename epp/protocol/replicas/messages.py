"""Messages between replicas: the facts of one writer, in the order in which they were noted."""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Final, TypeVar

import msgspec

from epp.model.events import Event
from epp.protocol.replicas.facts import VERSION, AnyFact, CopyFact, Moment, WaitingFact, Word

T = TypeVar("T")

LONGEST: Final = 8 << 20
"""Bytes of a message; longer ones are not read."""
POOL_BYTES: Final = 8
THIS_IS_YOU: Final = b""
"""The answer to a sender that need not send here: this replica, or another worker of its pod.

Looked-up names contain the addresses of these, too."""
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


Reply = Callable[[bytes], bool]
"""Answers the sender of a message with another one; returns whether there was room."""
Receive = Callable[[bytes, Reply], None]
"""Called with each message and its `Reply`, which answers own ones with `THIS_IS_YOU`.

It does not raise."""


class Dropped(Enum):
    """Why something that was received is not used; the values are the `reason` of a metric."""

    STRANGER = "stranger"
    """A connection without the shared secret."""
    TOO_LONG = "too_long"
    """A message longer than `LONGEST`."""
    MALFORMED = "malformed"
    """A message that cannot be read."""
    VERSION = "version"
    """A message of another version."""
    POOL = "pool"
    """A message of another pool."""
    OWN = "own"
    """A message of this replica."""
    REPEATED = "repeated"
    """A message that was received before."""
    UNKNOWN_KIND = "unknown_kind"
    """A fact of a kind that this version does not know, or that cannot be read."""
    NONSENSE = "nonsense"
    """A fact that cannot be true."""
    UNKNOWN_ENDPOINT = "unknown_endpoint"
    """A fact about an endpoint that this replica does not know."""
    STALE_ENDPOINT = "stale_endpoint"
    """A fact about another engine than the one that this replica knows by the endpoint's name."""
    NO_CHAIN = "no_chain"
    """A request whose chain this replica does not have, and was not sent in time."""


class Rejected(Exception):
    """A message of which nothing is used."""

    def __init__(self, reason: Dropped) -> None:
        self.reason: Final = reason
        super().__init__(reason.value)


class MessageHeader(msgspec.Struct, frozen=True, array_like=True):
    """The header of a message; its facts follow."""

    version: int
    """The format of the rest."""
    pool: bytes
    """A keyed hash of the pool's name."""
    sender: Word
    """A random number that the sender drew when it started."""
    sequence: Word
    """Counts the messages to all, from 1; 0 is an answer to one."""
    noted: Moment
    """When its first fact was noted, in seconds of the sender's clock."""


class _RawMessage(MessageHeader, frozen=True, array_like=True):
    facts: msgspec.Raw
    """An array of facts, some of which cannot be read."""


class _ReadMessage(MessageHeader, frozen=True, array_like=True):
    facts: list[AnyFact]


ReplicaMessage = _RawMessage | _ReadMessage
"""What one replica sends at once."""


class Received(msgspec.Struct, frozen=True):
    """The outcome of one message: the events, in order, and what to answer."""

    sender: int
    events: Sequence[Event]
    answers: Sequence[AnyFact]
    lag: float | None
    """Seconds since the first fact of it was noted; None while the sender's clock is unknown."""
    own: bool = False
    """Whether it is this replica's own."""
    copies: Sequence[CopyFact] = ()
    """Its facts about whole caches, which are handled apart, since comparing takes time."""
    waiting: Sequence[WaitingFact] = ()
    """Its facts about requests that wait; the last one counts."""


class _Version(msgspec.Struct, frozen=True, array_like=True):
    version: int


_encoder = msgspec.msgpack.Encoder()
_headers = msgspec.msgpack.Decoder(MessageHeader)
_raw_messages = msgspec.msgpack.Decoder(_RawMessage)
_versions = msgspec.msgpack.Decoder(_Version)
_each_raw = msgspec.msgpack.Decoder(list[msgspec.Raw])


@cache  # made with the first message: a picker that is alone does without them
def _messages() -> msgspec.msgpack.Decoder[_ReadMessage]:
    return msgspec.msgpack.Decoder(_ReadMessage)


@cache
def _one_fact() -> msgspec.msgpack.Decoder[AnyFact]:
    return msgspec.msgpack.Decoder(AnyFact)


def write_message(
    pool: bytes, sender: int, sequence: int, noted: float, facts: Sequence[AnyFact]
) -> bytes:
    """Write a message."""
    return _encoder.encode((VERSION, pool, sender, sequence, noted, facts))


def sender_of(data: bytes) -> int:
    """Return the number of the replica that sent a message; 0 if it cannot be read."""
    header = _decoded(_headers, data)
    return 0 if header is None else header.sender


def read_message(data: bytes) -> ReplicaMessage:
    """Read a message; `read_facts` returns its facts. Raises `Rejected`."""
    if len(data) > LONGEST:
        raise Rejected(Dropped.TOO_LONG)
    message: ReplicaMessage | None
    try:
        message = _messages().decode(data)
    except _UNREADABLE:
        message = _decoded(_raw_messages, data)
    if message is not None and message.version == VERSION:
        return message
    start = _decoded(_versions, data)
    other = start is not None and start.version != VERSION
    raise Rejected(Dropped.VERSION if other else Dropped.MALFORMED)


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T | None:
    try:
        return decoder.decode(data)
    except _UNREADABLE:
        return None


def read_facts(message: ReplicaMessage) -> tuple[list[AnyFact], int]:
    """Return the facts of a message, and how many cannot be read. Raises `Rejected`."""
    if isinstance(message, _ReadMessage):
        return message.facts, 0
    facts, unknown = list[AnyFact](), 0
    try:
        every = _each_raw.decode(message.facts)
    except _UNREADABLE:
        raise Rejected(Dropped.MALFORMED) from None
    for raw in every:
        try:
            facts.append(_one_fact().decode(raw))
        except _UNREADABLE:
            unknown += 1
    return facts, unknown
