"""The events of a fleet, as frozen values, which `Fleet.apply(event, now)` takes in."""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from epp.model.endpoint import Endpoint, EndpointId, Load, Target
from epp.model.kv_changes import CacheChanged, CacheCopied, CacheFeedLost, CacheFeedUp
from epp.model.prompts.repeated import ResponseRepeated
from epp.model.request import RequestId
from epp.model.request_events import (
    Aborted,
    Admitted,
    Finished,
    FirstToken,
    Generated,
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
    """It could not be connected to, or the connection broke before anything was answered."""
    LATE = "late"
    """It has been connected to, and the page is not there in time."""
    NO_PAGE = "no page"
    """What it answered is not a metrics page: it lives, and does not say how it is."""


class ScrapeFailed(msgspec.Struct, frozen=True):
    """A scrape of an endpoint brought no page, or not yet."""

    endpoint_id: EndpointId
    reason: ScrapeFailure


class AttributesReported(msgspec.Struct, frozen=True):
    """A source beside the metrics page reported numbers, by `attribute_key`; others stay."""

    endpoint_id: EndpointId
    attributes: Mapping[str, float]


class ModelsListed(msgspec.Struct, frozen=True):
    """An endpoint listed the models that it serves, adapters among them: all that it serves.

    `max_model_lens` are the longest contexts of those that said so (vLLM `max_model_len`): tokens
    of a prompt and of what is generated after it.
    """

    endpoint_id: EndpointId
    models: frozenset[str]
    max_model_lens: Mapping[str, int] = {}


class OrcaReported(msgspec.Struct, frozen=True):
    """The response to a request carried ORCA metrics: the parts of a `Load` that it named.

    `target` is where it was served.
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
    """An endpoint is left out, for `seconds` at most, as long as there are others."""

    endpoint_id: EndpointId
    reason: EjectionReason
    seconds: float


class Returned(msgspec.Struct, frozen=True):
    """An endpoint that was left out may be picked again."""

    endpoint_id: EndpointId


class BooksCorrected(msgspec.Struct, frozen=True):
    """Requests that were not released end: their endpoint reports for long that it has none."""

    endpoint_id: EndpointId
    requests: Sequence[RequestId]


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
    | FirstToken
    | Generated
    | Finished
    | Aborted
    | Unobserved
    | Ejected
    | Returned
    | BooksCorrected
    | ResponseRepeated
    | CacheChanged
    | CacheCopied
    | CacheFeedUp
    | CacheFeedLost
)
