"""The JSON that the console reads: the fleet and the last decisions by columns, and the rest."""

import msgspec


class DecisionColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions in order, with a column for each fact; None if it is not known, or not yet."""

    number: tuple[int, ...]
    """Counts decisions since the picker started."""
    request: tuple[str, ...]
    """The picker's ids of the requests."""
    client_id: tuple[str, ...]
    """The clients' `x-request-id`s."""
    model: tuple[str, ...]
    """The models as clients named them."""
    at_ms: tuple[int, ...]
    """When they were decided on, in milliseconds since 1970."""
    endpoint: tuple[str, ...]
    """Where the requests were sent."""
    prompt_tokens: tuple[int, ...]
    """As estimated; as the server counted them once it has."""
    predicted_cached: tuple[int, ...]
    """Prompt tokens that were predicted to be cached there."""
    cached: tuple[int | None, ...]
    """Cached tokens as the engine reported them."""
    predicted_ttft_ms: tuple[float | None, ...]
    """The predicted time to the first token."""
    ttft_ms: tuple[float | None, ...]
    """From a request's first bytes to the first ones of a streamed response."""
    duration_ms: tuple[float | None, ...]
    """From a request's first bytes to the response's last."""
    status: tuple[int | None, ...]
    """HTTP statuses."""
    outcome: tuple[str | None, ...]
    """None while a request runs."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the picker started; two of them give a rate. All but `responses` are tokens."""

    responses: int
    """Responses that reported usage and cached tokens."""
    prompt: int
    """Tokens of their prompts."""
    cached: int
    """Those that the engines had cached."""
    predicted: int
    """Those that were predicted to be."""
    error: int
    """The differences of the two, added up."""
    reuse_prompt: int
    """Tokens of the prompts whose reuse is counted; fewer after a series was forgotten."""
    available: int
    """Cached at the endpoint that had most of a prompt, as predicted."""
    captured: int
    """Cached at the endpoint that was picked, as predicted."""
    delivered: int
    """Cached there, as reported."""


class BandView(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one priority that wait."""

    priority: int
    requests: int
    bytes: int


class WaitingView(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that wait in the picker."""

    holds: bool
    """Whether requests wait for room; if not, `no_room` still counts those that would."""
    gated: bool
    """Whether they wait for the pool, too."""
    requests: int
    """Requests that wait."""
    bytes: int
    """Bytes of their bodies."""
    prefill_seconds: float
    """Their prefill, in seconds."""
    bands: tuple[BandView, ...]
    """Each priority that had requests, the highest first."""
    no_room: dict[str, int]
    """Requests whose best endpoint had no room, by the resource that it lacked."""
    refused: dict[str, int]
    """Requests that waited and were refused, by reason."""
    waited: int
    """Requests that waited and were sent."""
    waited_seconds: float
    """How long these waited, added up."""
    memory_share: float
    """The share of a cache that requests and their predicted output may take."""


class PeerView(msgspec.Struct, frozen=True, kw_only=True):
    """Another replica, by its messages."""

    name: str
    present: bool
    settled: bool
    """Whether it knows the same about caches as the others."""
    silent_seconds: float
    missing: int
    """Messages from it that did not arrive."""
    lag_ms: float | None
    """The delay of its last message; None while its clock is unknown."""


class ReplicasView(msgspec.Struct, frozen=True, kw_only=True):
    """The other replicas of this picker."""

    warm: bool
    """Whether this picker has caught up with the others."""
    known: int
    """By their addresses."""
    reached: int
    """Those that could be sent to, lately."""
    heard: int
    """Those that sent a message lately."""
    applied: int
    """Facts of others that were applied."""
    dropped: dict[str, int]
    """Messages of others that were not used, by reason."""
    unsent: int
    """Messages that another replica had no room for, or was not there for."""
    compared_same: int
    """Caches that were compared with another replica's model, and were the same."""
    compared_different: int
    """Caches that were compared and were different."""
    peers: tuple[PeerView, ...]
    """Each of them."""


class ShadowView(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a second configuration with the live one, so far."""

    policy: str
    """Its name."""
    agreed: int
    """Decisions for the same endpoint as the live one's."""
    differed: int
    """Decisions for another endpoint."""
    refused: int
    """Requests that it would have refused."""
    failed: int
    """Decisions in which it raised an error."""
    live_ttft_seconds: float
    """Predicted seconds to the first token of all decisions of both, added up."""
    shadow_ttft_seconds: float
    """The same as the shadow predicts them for its own decisions."""
    live_cached_tokens: int
    """Predicted cached tokens of the live decisions, added up."""
    shadow_cached_tokens: int
    """The same of the shadow's."""


class ConsolePage(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one picker."""

    pool: str
    """The pool's name."""
    started: str
    """Differs after a restart of the picker: all counts then start from 0."""
    at_ms: int
    """The time of day, in ms since 1970; a reader passes it back to get what ended since then."""
    decisions: int
    """How many were made so far."""
    endpoints: msgspec.Raw
    """The fields of `EndpointView`, and `room`, as columns.

    `room` is the fullest axis of an endpoint's room, 1 is full; None if it is not known."""
    totals: Totals
    """Counts since the picker's start."""
    recent: DecisionColumns
    """The latest decisions."""
    ended: DecisionColumns
    """Those that have ended since the reader's last page. Each worker numbers its own decisions."""
    waiting: WaitingView
    """The requests that wait in the picker."""
    replicas: ReplicasView | None
    """None if the picker has no other replicas."""
    shadow: ShadowView | None
    """None without a shadow."""
