"""The events of a fleet, as frozen values; `Fleet.apply(event, now)` applies them."""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from epp.model.endpoint import Endpoint, EndpointId, Load, Target
from epp.model.kv_changes import CacheChanged, CacheCleared, CacheCopied, CacheFeedLost, CacheFeedUp
from epp.model.learning.fit import FitState
from epp.model.learning.mean import MeanState
from epp.model.learning.output_lengths import ResponsesState
from epp.model.learning.slowness import ClassSlownessState, SlownessState
from epp.model.learning.stored_responses import StoredState
from epp.model.learning.ttft_share import TtftShareState
from epp.model.prompts.repeated import ResponseRepeated
from epp.model.request import RequestId
from epp.model.request_events import (
    Aborted,
    Admitted,
    Finished,
    FirstToken,
    Generated,
    ResponseNamed,
    Served,
    Unobserved,
)


class EndpointUpserted(msgspec.Struct, frozen=True):
    """An endpoint exists. The same id with another uid or address is another engine."""

    endpoint: Endpoint


class EndpointRemoved(msgspec.Struct, frozen=True):
    """An endpoint is gone, with all it held."""

    endpoint_id: EndpointId


class Listed(msgspec.Struct, frozen=True):
    """The source of endpoints has listed all of them: the picker may call itself ready."""


class LoadReported(msgspec.Struct, frozen=True):
    """An endpoint answered a scrape."""

    endpoint_id: EndpointId
    load: Load


class ScrapeFailure(Enum):
    """Why a scrape brought no page."""

    REFUSED = "refused"
    """Nothing listens at the endpoint's address."""
    BROKEN = "broken"
    """It could not be connected to, or the connection broke before an answer."""
    LATE = "late"
    """It was connected to, but the page did not arrive in time."""
    NO_PAGE = "no page"
    """It answered with something else than a metrics page: it is alive, but its load is unknown."""


class ScrapeFailed(msgspec.Struct, frozen=True):
    """A scrape of an endpoint failed, or is late."""

    endpoint_id: EndpointId
    reason: ScrapeFailure


class AttributesReported(msgspec.Struct, frozen=True):
    """A source other than the metrics page reported numbers, by `attribute_key`; others stay."""

    endpoint_id: EndpointId
    attributes: Mapping[str, float]


class ModelsListed(msgspec.Struct, frozen=True):
    """An endpoint listed the models that it serves, adapters among them.

    With `serves_others` it may serve more than these, such as adapters that it loads when they
    are first requested. `max_model_lens` are the longest contexts of those that report them (vLLM
    `max_model_len`), in tokens of prompt and output. `aliases` are names that share the cache of
    another listed name, each with that one.
    """

    endpoint_id: EndpointId
    models: frozenset[str]
    max_model_lens: Mapping[str, int] = {}
    serves_others: bool = False
    aliases: Mapping[str, str] = {}


class OrcaReported(msgspec.Struct, frozen=True):
    """The response to a request carried ORCA metrics, which are parts of a `Load`.

    `target` served it.
    """

    request_id: RequestId
    target: Target
    kv_usage: float | None = None
    waiting: float | None = None
    running: float | None = None


class EjectionReason(Enum):
    """Why an endpoint is left out; the values are the `reason` label of a metric."""

    FAILURES = "consecutive_failures"
    STALL = "stall"


class Ejected(msgspec.Struct, frozen=True):
    """An endpoint is left out while there are others, for `seconds` at most."""

    endpoint_id: EndpointId
    reason: EjectionReason
    seconds: float


class Returned(msgspec.Struct, frozen=True):
    """An endpoint that was left out may be picked again."""

    endpoint_id: EndpointId


class ReportsFrozen(msgspec.Struct, frozen=True):
    """An endpoint's reports have not changed for `seconds`, although it works: they do not count.

    It is found once for each endpoint.
    """

    endpoint_id: EndpointId
    seconds: float


class BooksCorrected(msgspec.Struct, frozen=True):
    """Requests that were not released end: their endpoint has long reported that it has none."""

    endpoint_id: EndpointId
    requests: Sequence[RequestId]


ClassState = tuple[
    str, FitState, ClassSlownessState, FitState, ClassSlownessState, MeanState | None
]
"""The state of a class: its label; its models of prefill and decoding, each with its slowness; and
the seconds of a token, None if none was timed."""
EndpointState = tuple[EndpointId, str, SlownessState, SlownessState]
"""The state of an endpoint: the label of its class, and its slowness in prefill and in decoding."""


class LearnedCopied(msgspec.Struct, frozen=True):
    """The speeds and lengths that another replica has learned, to replace those learned here.

    Unknown classes and endpoints are ignored, and so are endpoints that have another class here.
    """

    classes: Sequence[ClassState]
    """Each class of endpoints."""
    endpoints: Sequence[EndpointState]
    """Each endpoint."""
    responses: Sequence[ResponsesState]
    """Each kind of response."""
    ttft_share: TtftShareState | None
    """None if no response was seen to its end."""


class ResponsesCopied(msgspec.Struct, frozen=True):
    """The stored responses that another replica knows of, the oldest first."""

    stored: Sequence[StoredState]


Event = (
    EndpointUpserted
    | EndpointRemoved
    | Listed
    | LoadReported
    | ScrapeFailed
    | AttributesReported
    | ModelsListed
    | OrcaReported
    | Admitted
    | Served
    | ResponseNamed
    | FirstToken
    | Generated
    | Finished
    | Aborted
    | Unobserved
    | Ejected
    | Returned
    | ReportsFrozen
    | BooksCorrected
    | ResponseRepeated
    | CacheChanged
    | CacheCleared
    | CacheCopied
    | CacheFeedUp
    | CacheFeedLost
    | LearnedCopied
    | ResponsesCopied
)
