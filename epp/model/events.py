"""Every way the fleet can change, as frozen values. `Fleet.apply(event, now)` is their reader."""

import msgspec

from epp.model.endpoint import Endpoint, EndpointId, Load, Target
from epp.model.kv_changes import CacheChanged, CacheFeedLost, CacheFeedUp
from epp.model.request import InferenceRequest, RequestId, Usage


class EndpointUpserted(msgspec.Struct, frozen=True):
    """An endpoint exists. The same id with another uid or address is another engine."""

    endpoint: Endpoint


class EndpointRemoved(msgspec.Struct, frozen=True):
    """An endpoint is gone, with all it held."""

    endpoint_id: EndpointId


class Listed(msgspec.Struct, frozen=True):
    """The source of endpoints has told all it knows: the picker may call itself ready."""


class LoadReported(msgspec.Struct, frozen=True):
    """An endpoint answered a scrape."""

    endpoint_id: EndpointId
    load: Load


class ScrapeFailed(msgspec.Struct, frozen=True):
    """An endpoint did not answer a scrape; `refused` when nothing listens at its address."""

    endpoint_id: EndpointId
    refused: bool


class OrcaReported(msgspec.Struct, frozen=True):
    """A response carried ORCA metrics: the parts of a `Load` that it named."""

    target: Target
    kv_usage: float | None = None
    waiting: float | None = None
    running: float | None = None


class Admitted(msgspec.Struct, frozen=True):
    """A request is on its way to an endpoint, to which the picker owes this accounting."""

    request: InferenceRequest
    endpoint_id: EndpointId


class Served(msgspec.Struct, frozen=True):
    """The proxy says which target served the request; it may not be the one picked."""

    request_id: RequestId
    target: Target


class FirstToken(msgspec.Struct, frozen=True):
    """The first byte of a streamed body was seen: the prefill is over."""

    request_id: RequestId


class Generated(msgspec.Struct, frozen=True):
    """A streamed response has brought about so many tokens up to now."""

    request_id: RequestId
    tokens: int


class Finished(msgspec.Struct, frozen=True):
    """The response ended; `generated` are the tokens streamed, where `usage` is None."""

    request_id: RequestId
    usage: Usage | None = None
    generated: int = 0


class Aborted(msgspec.Struct, frozen=True):
    """The exchange ended before its response did; `refused` when the endpoint never took it."""

    request_id: RequestId
    generated: int = 0
    refused: bool = False


class Unobserved(msgspec.Struct, frozen=True):
    """The request was routed and nothing more will be heard of it."""

    request_id: RequestId


Event = (
    EndpointUpserted
    | EndpointRemoved
    | Listed
    | LoadReported
    | ScrapeFailed
    | OrcaReported
    | Admitted
    | Served
    | FirstToken
    | Generated
    | Finished
    | Aborted
    | Unobserved
    | CacheChanged
    | CacheFeedUp
    | CacheFeedLost
)
