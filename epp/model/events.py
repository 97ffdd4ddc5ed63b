"""The events of a fleet, as frozen values, which `Fleet.apply(event, now)` takes in."""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from epp.model.endpoint import Endpoint, EndpointId, Load, Target
from epp.model.kv_changes import CacheChanged, CacheCopied, CacheFeedLost, CacheFeedUp
from epp.model.learning.fit import FitState
from epp.model.learning.mean import MeanState
from epp.model.learning.output_lengths import ResponsesState
from epp.model.learning.slowness import ClassSlownessState, SlownessState
from epp.model.learning.ttft_share import TtftShareState
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


ClassState = tuple[
    str, FitState, ClassSlownessState, FitState, ClassSlownessState, MeanState | None
]
"""What is learned of a class: its label; its prefill, its decoding, each with how slow it is; and
the seconds of a token, None if none was timed."""
EndpointState = tuple[EndpointId, str, SlownessState, SlownessState]
"""What is learned of an endpoint, and the label of its class: how slow it is in prefill, and in
decoding."""


class LearnedCopied(msgspec.Struct, frozen=True):
    """What another replica has learned of speeds and lengths, in place of what was learned here.

    Classes and endpoints that are not known here are passed over, as are endpoints whose class is
    another one here.
    """

    classes: Sequence[ClassState]
    """Each class of endpoints."""
    endpoints: Sequence[EndpointState]
    """Each endpoint."""
    responses: Sequence[ResponsesState]
    """Each kind of response."""
    ttft_share: TtftShareState | None
    """None if no response was seen to its end."""


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
    | LearnedCopied
)
