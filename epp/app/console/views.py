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
    """The models in the requests to the servers."""
    at_ms: tuple[int, ...]
    """When they were decided on, in milliseconds since 1970."""
    endpoint: tuple[str, ...]
    """Where the requests were sent."""
    prompt_tokens: tuple[int, ...]
    """The lengths of the prompts: estimated, then as the server counted them."""
    predicted_cached: tuple[int, ...]
    """Prompt tokens that were predicted to be cached at that endpoint."""
    cached: tuple[int | None, ...]
    """Cached prompt tokens, as the engine reported them."""
    predicted_ttft_ms: tuple[float | None, ...]
    """The predicted times to the first token."""
    ttft_ms: tuple[float | None, ...]
    """From a request's first bytes to its streamed response's first ones."""
    duration_ms: tuple[float | None, ...]
    """From a request's first bytes to its response's last ones."""
    status: tuple[int | None, ...]
    """The HTTP statuses of the responses."""
    outcome: tuple[str | None, ...]
    """How the requests ended; None while one runs."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the picker started; two of them give a rate. All but `responses` are tokens."""

    responses: int
    """Responses that reported usage and cached tokens."""
    prompt: int
    """Prompt tokens of these responses."""
    cached: int
    """Prompt tokens that the engines reported as cached."""
    predicted: int
    """Prompt tokens that were predicted to be cached."""
    error: int
    """The differences between `cached` and `predicted`, added up."""
    reuse_prompt: int
    """Tokens of prompts whose reuse is counted; falls if a series is forgotten."""
    available: int
    """Predicted cached tokens at the endpoints that had most of each prompt."""
    captured: int
    """Predicted cached tokens at the endpoints that were picked."""
    delivered: int
    """Reported cached tokens at the endpoints that were picked."""


class BandView(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one priority that wait."""

    priority: int
    requests: int
    bytes: int


class WaitingView(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that wait in the picker."""

    holds: bool
    """Whether requests wait for room; if not, `no_room` counts those that would."""
    gated: bool
    """Whether requests also wait for the pool as a whole."""
    requests: int
    """The number of requests that wait."""
    bytes: int
    """Bytes of the bodies of the waiting requests."""
    prefill_seconds: float
    """The predicted prefill of the waiting requests, in seconds."""
    bands: tuple[BandView, ...]
    """Each priority that had requests, the highest first."""
    no_room: dict[str, int]
    """Requests whose best endpoint had no room, by the resource that it lacked."""
    refused: dict[str, int]
    """Requests that waited and were refused, by reason."""
    waited: int
    """Requests that waited and were sent."""
    waited_seconds: float
    """Seconds that the requests in `waited` waited, added up."""
    memory_share: float
    """The share of a cache that requests and their predicted output may take."""


class PeerView(msgspec.Struct, frozen=True, kw_only=True):
    """Another replica, by its messages."""

    name: str
    present: bool
    settled: bool
    """Whether it knows the same about caches as the other replicas."""
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
    """Replicas whose addresses are known."""
    reached: int
    """Replicas that could be sent to lately."""
    heard: int
    """Replicas that sent a message lately."""
    applied: int
    """Facts from other replicas that were applied."""
    dropped: dict[str, int]
    """Messages from other replicas that were not used, by reason."""
    unsent: int
    """Messages lost because another replica had no room for them, or was gone."""
    compared_same: int
    """Caches that were the same as in another replica's model when compared."""
    compared_different: int
    """Caches that differed from another replica's model when compared."""
    peers: tuple[PeerView, ...]
    """One entry for each other replica."""


class ShadowView(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a second configuration with the live one, so far."""

    policy: str
    """The name of the second configuration."""
    agreed: int
    """Decisions in which both chose the same endpoint."""
    differed: int
    """Decisions in which the two chose different endpoints."""
    refused: int
    """Requests that the second configuration would have refused."""
    failed: int
    """Decisions in which the second one raised an error."""
    live_ttft_seconds: float
    """Predicted TTFT of the live decisions where both decided, in seconds, added up."""
    shadow_ttft_seconds: float
    """Predicted TTFT of the shadow's decisions, in seconds, added up."""
    live_cached_tokens: int
    """Predicted cached tokens of the live decisions, added up."""
    shadow_cached_tokens: int
    """Predicted cached tokens of the shadow's decisions, added up."""


class ConsolePage(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one picker."""

    pool: str
    """The pool's name."""
    started: str
    """Identifies the picker's start: after a restart it differs, and all counts start from 0."""
    at_ms: int
    """The time of day, in ms since 1970; a reader passes it back to get what ended since then."""
    decisions: int
    """How many decisions were made so far."""
    endpoints: msgspec.Raw
    """The fields of `EndpointView`, and `room`, as columns.

    `room` is the fullest axis of an endpoint's room, 1 is full; None if it is not known."""
    totals: Totals
    """Counts since the picker's start."""
    recent: DecisionColumns
    """The latest decisions."""
    ended: DecisionColumns
    """Decisions that ended since the reader's last page; each worker numbers its own."""
    waiting: WaitingView
    """The requests that wait in the picker."""
    replicas: ReplicasView | None
    """None if the picker has no other replicas."""
    shadow: ShadowView | None
    """None without a shadow."""
