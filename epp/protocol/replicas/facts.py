"""The facts that replicas send each other, as they are written.

A fact is an array that begins with the number of its kind. Readers skip kinds that they do not
know, and whatever follows the fields that they know, so that consecutive versions understand each
other. A request is named by a number that the writer gave it; its id is sent once.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from epp.model.endpoint import EndpointId, EngineId
from epp.model.events import EjectionReason
from epp.model.learning.stored_responses import MOST
from epp.model.prompts.text_lengths import Kind
from epp.model.request import Api, RequestId
from epp.model.request_events import Failure
from epp.protocol.bodies.coercion import MAX_ANSWERS

VERSION: Final = 2
"""The version of messages as a whole: messages of another version are not read."""
LARGEST: Final = 1 << 40
"""The greatest count."""

Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""A count of bytes, tokens or blocks."""
Word = Annotated[int, msgspec.Meta(ge=0)]
"""64 bits: a hash, or the random number of a replica."""
Moment = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""Seconds of a clock, or from now; negative in the past."""

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""Seconds, tokens or measurements, or sums of these."""
Amounts = tuple[Amount, Amount, Amount]
Positive = Annotated[float, msgspec.Meta(ge=1e-30, le=1e12)]
Share = Annotated[float, msgspec.Meta(ge=0.01, le=1e4)]
Factor = Annotated[float, msgspec.Meta(ge=-300, le=300)]
"""The logarithm of a factor."""
Fit = tuple[tuple[Share, Share, Share], tuple[Amounts, Amounts, Amounts], Amounts, Amounts, Number]
"""`FitState`. This and the four below are the model's states, with bounds on each number."""
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


class PromptFact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One prompt. Fields of later versions come last; earlier versions skip them."""

    hashes: bytes
    """The blocks after the known prefix, 8 bytes each, little-endian."""
    ends: bytes
    """The tokens up to the end of each of these blocks, written alike; empty for token ids."""
    block: Number
    """The size of all blocks if the prompt is token ids; 0 if it is text."""
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
    multimodal: bool = False
    """Whether some of its tokens stand for media."""


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The base of all kinds."""


class RequestFact(Fact, frozen=True, array_like=True):
    """A fact about a request whose `AdmittedFact` was sent before, or will be."""

    number: Number


class AdmittedFact(RequestFact, frozen=True, array_like=True, tag=1):
    """A request was sent to an endpoint."""

    id: RequestId
    """The request's id."""
    endpoint: EndpointId
    """The endpoint's id."""
    epoch: Number
    """Which engine had that name (`engine_epoch`)."""
    model: str
    """The target model."""
    api: Api
    """The API of its path."""
    prompts: list[PromptFact]
    """Its prompts, without text."""
    stream: bool
    """Whether the response is streamed."""
    max_tokens: Number | None
    """The client's limit of generated tokens; None if it set none."""
    kind: Kind
    """The kind of the text, if there is only one prompt."""
    prefill: EndpointId | None = None
    """The endpoint that computes its prompts, if that is another one."""
    encode: EndpointId | None = None
    """The endpoint that encodes its images and sounds, if that is another one."""
    n: Annotated[int, msgspec.Meta(ge=0, le=MAX_ANSWERS)] = 1
    """How many answers each prompt gets; 0 without prompts."""


class FirstTokenFact(RequestFact, frozen=True, array_like=True, tag=2):
    """Its first token was seen."""


class GeneratedFact(RequestFact, frozen=True, array_like=True, tag=3):
    """Its stream has come in this many pieces so far."""

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
    computed: Number | None = None
    busy: bool = False
    """`failure` is `Failure.BUSY`, which earlier versions do not know."""


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

    endpoint: EndpointId
    reason: EjectionReason
    seconds: Amount


class ReturnedFact(Fact, frozen=True, array_like=True, tag=9):
    """An endpoint may be picked again."""

    endpoint: EndpointId


class RepeatedFact(Fact, frozen=True, array_like=True, tag=10):
    """A prompt repeats the response to a request (`ResponseRepeated`)."""

    id: RequestId
    anchor: Word
    hashes: bytes
    sizes: list[Number]


class ClearedFact(Fact, frozen=True, array_like=True, tag=12):
    """An endpoint, whose engine is that of `epoch`, emptied its prefix cache (`CacheCleared`)."""

    endpoint: EndpointId
    epoch: Number


class ChainQuery(Fact, frozen=True, array_like=True, tag=20):
    """Asks for the chain of this many blocks that ends with this hash."""

    tip: Word
    blocks: Number


class ChainReply(Fact, frozen=True, array_like=True, tag=21):
    """The chain that was asked for, in full; None if the writer no longer has it."""

    tip: Word
    prompt: PromptFact | None


class HeartbeatFact(Fact, frozen=True, array_like=True, tag=22):
    """The writer is alive, and has this many requests in flight, whose numbers have this digest."""

    at: Moment
    in_flight: Number
    digest: Number
    settled: bool = False
    """Whether it knows of caches what others know: it may own endpoints, and is asked first."""
    full: bool = False
    """Whether it forgets blocks for want of memory, or has lately: others own endpoints then."""


class HeartbeatSeen(Fact, frozen=True, array_like=True, tag=23):
    """A heartbeat of time `heartbeat` was received at time `at` of the receiver's clock."""

    heartbeat: Moment
    at: Moment


class InFlightQuery(Fact, frozen=True, array_like=True, tag=24):
    """Asks for the numbers of all requests in flight."""


class InFlightReply(Fact, frozen=True, array_like=True, tag=25):
    """The numbers of all requests in flight."""

    numbers: list[Number]
    newest: Number = LARGEST
    """The writer's newest request when it made the list; `LARGEST` if it does not say."""


class RequestsQuery(Fact, frozen=True, array_like=True, tag=26):
    """Asks for these requests once more."""

    numbers: list[Number]


class LeavingFact(Fact, frozen=True, array_like=True, tag=27):
    """The writer stops, in order."""


class DigestFact(Fact, frozen=True, array_like=True, tag=30):
    """What the owner of an endpoint believes its cache to hold, as sums of buckets.

    In all facts about caches, `cache_epoch` distinguishes the starts of its engine.
    """

    endpoint: EndpointId
    cache_epoch: Number
    sums: bytes


class BucketsQuery(Fact, frozen=True, array_like=True, tag=31):
    """Asks for what these buckets of an endpoint's cache hold."""

    endpoint: EndpointId
    cache_epoch: Number
    buckets: list[Number]
    added: bool = False
    """Whether the asker adds them to what it holds in these buckets."""


class BucketsReply(Fact, frozen=True, array_like=True, tag=32):
    """All blocks in these buckets with their tokens; the last to be evicted come first.

    `added`: the receiver keeps the other blocks that it has in these buckets.
    """

    endpoint: EndpointId
    cache_epoch: Number
    buckets: list[Number]
    hashes: bytes
    sizes: bytes
    added: bool = False


class SnapshotQuery(Fact, frozen=True, array_like=True, tag=33):
    """Asks for what all endpoints' caches hold; `unsettled`: even if the reader is not settled."""

    unsettled: bool = False


class ContentsReply(Fact, frozen=True, array_like=True, tag=34):
    """What an endpoint's cache holds; `left` of `endpoints` (0: unsaid) follow in the snapshot."""

    endpoint: EndpointId
    cache_epoch: Number
    hashes: bytes
    sizes: bytes
    closed: bool
    left: Number
    endpoints: Number = 0


class NoSnapshot(Fact, frozen=True, array_like=True, tag=35):
    """The writer has no snapshot: it has just started, or knows no endpoint."""


class LearnedReply(Fact, frozen=True, array_like=True, tag=36):
    """What the writer has learned of speeds and lengths (`LearnedCopied`), before a snapshot."""

    classes: Sequence[ClassState]
    endpoints: Sequence[tuple[EndpointId, str, Slow, Slow]]
    responses: Sequence[tuple[str, bool, Mean, tuple[Sequence[Amount], Sequence[Amount]]]]
    ttft_share: tuple[Mean, Mean] | None
    settled: bool = True  # as in the writer's heartbeats


class StoredReply(Fact, frozen=True, array_like=True, tag=38):
    """Which engines have which responses (`ResponsesCopied`), before a snapshot."""

    engines: Annotated[Sequence[EngineId], msgspec.Meta(max_length=MOST)]
    keys: bytes
    """Hashes of the responses' ids, 8 bytes each."""
    places: bytes
    """For each response, the position in `engines` of the one that has it, 4 bytes."""


class WaitingHead(msgspec.Struct, frozen=True, array_like=True):
    """A request that is the next one of its priority at an endpoint."""

    priority: int
    endpoint: EndpointId
    ahead: Amount
    """How far in virtual time its flow is ahead of what went last."""
    seconds: Amount
    """Seconds of its prefill there."""
    since: Moment
    deadline: Moment | None
    """None if it has none, as below."""
    ttft_by: Moment | None


class WaitingFact(Fact, frozen=True, array_like=True, tag=37):
    """The requests that go next at the writer, in order. It replaces the fact before it."""

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
