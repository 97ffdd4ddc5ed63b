"""The facts that replicas tell each other, as they are written.

A fact is an array that begins with the number of its kind. Readers pass over kinds that they do
not know, and over what follows the fields that they know, so that versions next to each other
understand each other. Requests go by a number that the writer gave them; their ids are told once.
"""

from collections.abc import Sequence
from typing import Annotated, Final
from zlib import crc32

import msgspec

from epp.model.endpoint import Endpoint, EndpointId
from epp.model.events import EjectionReason
from epp.model.learning.stored_responses import MOST, Engine
from epp.model.prompts.text_lengths import Kind
from epp.model.request import Api
from epp.model.request_events import Failure

VERSION: Final = 2
"""Of messages as a whole: those of another one are not read."""
LARGEST: Final = 1 << 40
"""What is counted is at most so much."""

MAX_EPOCHS: Final = 4096
"""Endpoints whose epochs are kept, at most: pods come with other names than those that went."""

Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""A count of bytes, tokens or blocks."""
Word = Annotated[int, msgspec.Meta(ge=0)]
"""64 bits: a hash, or what a replica drew as its number."""
Moment = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""Seconds of a clock, or from now; less than 0 for what is past."""

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""Seconds, tokens or measurements, or sums of these."""
Amounts = tuple[Amount, Amount, Amount]
Positive = Annotated[float, msgspec.Meta(ge=1e-30, le=1e12)]
Share = Annotated[float, msgspec.Meta(ge=0.01, le=1e4)]
Factor = Annotated[float, msgspec.Meta(ge=-300, le=300)]
"""The logarithm of a factor."""
Times = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Fit = tuple[tuple[Share, Share, Share], tuple[Amounts, Amounts, Amounts], Amounts, Amounts, Times]
"""`FitState`, as the four below, within what the models compute with."""
Slow = tuple[
    Annotated[float, msgspec.Meta(ge=-4.7, le=4.7)],
    Annotated[float, msgspec.Meta(ge=0, le=12)],
    Annotated[float, msgspec.Meta(ge=-1, le=1)],
    bool,
]
ClassSlow = tuple[
    Annotated[float, msgspec.Meta(ge=-4.7, le=4.7)],
    Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)],
]
Mean = tuple[
    Positive, Annotated[int, msgspec.Meta(ge=1, le=LARGEST)], Factor, Amount, Factor, Positive
]
ClassState = tuple[str, Fit, ClassSlow, Fit, ClassSlow, Mean | None]


class PromptFact(msgspec.Struct, frozen=True, array_like=True):
    """One prompt. Fields that others add come last, and are passed over by those that lack them."""

    hashes: bytes
    """The blocks after the known prefix, 8 bytes each, little-endian."""
    ends: bytes
    """The tokens up to the end of each of these, written like them; of token ids nothing."""
    block: Number
    """The size of all blocks of token ids; 0 of a text."""
    size: Number
    """The length of the prompt, in bytes of text or in tokens."""
    total: Number
    """Its length in tokens."""
    known: Number
    """The tokens at its start that a server counted."""
    rest_digest: Word
    """A hash of what follows the last full block."""
    marks: list[Number] = []
    """The ends of messages after the known prefix."""
    tip: Word = 0
    """The last hash of the known prefix."""
    before: Number = 0
    """How many blocks the known prefix has."""
    tokens_before: Number = 0
    """How many tokens it has."""
    uncached: bool = False
    """Whether no cache may serve it."""


class Fact(msgspec.Struct, frozen=True, array_like=True):
    """What all kinds are."""


class RequestFact(Fact, frozen=True, array_like=True):
    """A fact about a request that was told of before, or will be."""

    number: Number


class AdmittedFact(RequestFact, frozen=True, array_like=True, tag=1):
    """A request was sent to an endpoint."""

    id: str
    """The request's id."""
    endpoint: str
    """The endpoint's id."""
    epoch: Number
    """Which engine of that name it was (`epoch_of`)."""
    model: str
    """The target model."""
    api: Api
    """The API that it came by."""
    prompts: list[PromptFact]
    """Its prompts, without text."""
    stream: bool
    """Whether the response is streamed."""
    max_tokens: Number | None
    """The client's limit of generated tokens; None if it set none."""
    kind: Kind
    """What the text of an only prompt consists of."""
    prefill: str | None = None
    """The endpoint that computes its prompts, if that is another one."""


class FirstTokenFact(RequestFact, frozen=True, array_like=True, tag=2):
    """Its first token was seen."""


class GeneratedFact(RequestFact, frozen=True, array_like=True, tag=3):
    """Its stream has come in so many pieces so far."""

    pieces: Number


class FinishedFact(RequestFact, frozen=True, array_like=True, tag=4):
    """It ended well, in `generated` pieces of a stream. `reported`: the server counted tokens."""

    generated: Number = 0
    reported: bool = False
    prompt_tokens: Number = 0
    completion_tokens: Number = 0
    cached_tokens: Number | None = None
    implausible: bool = False


class AbortedFact(RequestFact, frozen=True, array_like=True, tag=5):
    """It ended before its response did (`epp.model.events.Aborted`)."""

    generated: Number = 0
    refused: bool = False
    failure: Failure | None = None
    served: bool = False


class UnobservedFact(RequestFact, frozen=True, array_like=True, tag=6):
    """Nothing more of it will be seen."""

    begun: bool = False


class ServedFact(RequestFact, frozen=True, array_like=True, tag=7):
    """The proxy reported that this target serves it."""

    target: str
    retried: bool = False


class NamedFact(RequestFact, frozen=True, array_like=True, tag=11):
    """Its response has this id."""

    response: str


class EjectedFact(Fact, frozen=True, array_like=True, tag=8):
    """An endpoint is left out for a while."""

    endpoint: str
    reason: EjectionReason
    seconds: Amount


class ReturnedFact(Fact, frozen=True, array_like=True, tag=9):
    """An endpoint may be picked again."""

    endpoint: str


class RepeatedFact(Fact, frozen=True, array_like=True, tag=10):
    """A prompt repeats the response to a request (`ResponseRepeated`)."""

    id: str
    anchor: Word
    hashes: bytes
    sizes: list[Number]


class ClearedFact(Fact, frozen=True, array_like=True, tag=12):
    """An endpoint has emptied its prefix cache (`CacheCleared`)."""

    endpoint: str
    epoch: Number
    """Which engine of that name it was (`epoch_of`)."""


class ChainQuery(Fact, frozen=True, array_like=True, tag=20):
    """Tell the chain of this many blocks that ends with this hash."""

    tip: Word
    blocks: Number


class ChainReply(Fact, frozen=True, array_like=True, tag=21):
    """The chain that was asked for, in full; None if it is not known any more."""

    tip: Word
    prompt: PromptFact | None


class HeartbeatFact(Fact, frozen=True, array_like=True, tag=22):
    """The writer lives, and has this many requests in flight, whose numbers have this digest."""

    at: Moment
    in_flight: Number
    digest: Number
    settled: bool = False
    """Whether it knows of caches what the others know: it may own endpoints, and warm others."""


class HeartbeatSeen(Fact, frozen=True, array_like=True, tag=23):
    """A heartbeat of time `heartbeat` was heard at time `at`, by the clock of who heard it."""

    heartbeat: Moment
    at: Moment


class InFlightQuery(Fact, frozen=True, array_like=True, tag=24):
    """Tell the numbers of all requests in flight."""


class InFlightReply(Fact, frozen=True, array_like=True, tag=25):
    """The numbers of all requests in flight."""

    numbers: list[Number]
    newest: Number = LARGEST
    """The writer's newest request, of those that the list is about; any, if it does not say."""


class RequestsQuery(Fact, frozen=True, array_like=True, tag=26):
    """Tell these requests once more."""

    numbers: list[Number]


class LeavingFact(Fact, frozen=True, array_like=True, tag=27):
    """The writer stops, in order."""


class DigestFact(Fact, frozen=True, array_like=True, tag=30):
    """What the owner of an endpoint believes its cache to hold, as sums of buckets.

    `epoch` tells one start of its engine from another, in all facts about caches.
    """

    endpoint: str
    epoch: Number
    sums: bytes


class BucketsQuery(Fact, frozen=True, array_like=True, tag=31):
    """Tell what these buckets of an endpoint's cache hold."""

    endpoint: str
    epoch: Number
    buckets: list[Number]
    added: bool = False
    """Whether they are to be added to what who asks holds there."""


class BucketsReply(Fact, frozen=True, array_like=True, tag=32):
    """All blocks in these buckets, the last to be evicted first, with their tokens.

    `added`: blocks of others in these buckets are there, too.
    """

    endpoint: str
    epoch: Number
    buckets: list[Number]
    hashes: bytes
    sizes: bytes
    added: bool = False


class SnapshotQuery(Fact, frozen=True, array_like=True, tag=33):
    """Tell what all endpoints' caches hold."""


class ContentsReply(Fact, frozen=True, array_like=True, tag=34):
    """What an endpoint's cache holds; `left` endpoints follow in the same snapshot.

    The snapshot is of `endpoints` altogether; 0 from a version that does not say it.
    """

    endpoint: str
    epoch: Number
    hashes: bytes
    sizes: bytes
    closed: bool
    left: Number
    endpoints: Number = 0


class NoSnapshot(Fact, frozen=True, array_like=True, tag=35):
    """The writer has nothing to tell: it has just started, or knows no endpoint."""


class LearnedReply(Fact, frozen=True, array_like=True, tag=36):
    """What the writer has learned of speeds and lengths (`LearnedCopied`), before a snapshot."""

    classes: Sequence[ClassState]
    endpoints: Sequence[tuple[EndpointId, str, Slow, Slow]]
    responses: Sequence[tuple[str, bool, Mean, tuple[Sequence[Amount], Sequence[Amount]]]]
    ttft_share: tuple[Mean, Mean] | None


class StoredReply(Fact, frozen=True, array_like=True, tag=38):
    """Which engines have which responses (`ResponsesCopied`), before a snapshot."""

    engines: Annotated[Sequence[Engine], msgspec.Meta(max_length=MOST)]
    keys: bytes
    """Hashes of the responses' ids, 8 bytes each."""
    places: bytes
    """Which of `engines` has it, of each, 4 bytes."""


class WaitingHead(msgspec.Struct, frozen=True, array_like=True):
    """A request that is the next one of its priority at an endpoint."""

    priority: int
    endpoint: str
    ahead: Amount
    """How far in virtual time its flow is ahead of what went last."""
    seconds: Amount
    """Seconds of its prefill there."""
    since: Moment
    deadline: Moment | None
    """None if it has none, as below."""
    ttft_by: Moment | None


class WaitingFact(Fact, frozen=True, array_like=True, tag=37):
    """What waits at the writer and goes next, the first first; what was told before is over."""

    seconds: Amount
    """Seconds of prefill of all that wait."""
    heads: Sequence[WaitingHead]


CopyFact = (
    DigestFact
    | BucketsQuery
    | BucketsReply
    | SnapshotQuery
    | ContentsReply
    | NoSnapshot
    | LearnedReply
    | StoredReply
)
"""Facts about caches as a whole, and what a replica starts with."""

AnyFact = (
    AdmittedFact
    | FirstTokenFact
    | GeneratedFact
    | FinishedFact
    | AbortedFact
    | UnobservedFact
    | ServedFact
    | NamedFact
    | EjectedFact
    | ReturnedFact
    | RepeatedFact
    | ClearedFact
    | ChainQuery
    | ChainReply
    | HeartbeatFact
    | HeartbeatSeen
    | InFlightQuery
    | InFlightReply
    | RequestsQuery
    | LeavingFact
    | CopyFact
    | WaitingFact
)


def epoch_of(endpoint: Endpoint) -> int:
    """Return what tells one engine of an endpoint's name from another."""
    uid, target, rank = endpoint.engine
    return crc32(f"{uid} {target} {rank}".encode(errors="surrogateescape"))
