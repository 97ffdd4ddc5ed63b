"""The events of a fleet, as frozen values, which `Fleet.apply(event, now)` takes in."""

from collections.abc import Mapping, Sequence

import msgspec

from epp.model.endpoint import Endpoint, EndpointId, Load, Target
from epp.model.kv_changes import CacheChanged, CacheFeedLost, CacheFeedUp
from epp.model.prompts.hashing import BlockHash
from epp.model.quote import Quote
from epp.model.request import RequestId, Usage


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


class ScrapeFailed(msgspec.Struct, frozen=True):
    """An endpoint did not answer a scrape; `refused` when nothing listens at its address."""

    endpoint_id: EndpointId
    refused: bool


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
    """A response carried ORCA metrics: the parts of a `Load` that it named."""

    target: Target
    kv_usage: float | None = None
    waiting: float | None = None
    running: float | None = None


class Admitted(msgspec.Struct, frozen=True):
    """A request was sent to an endpoint. Its quote may come from another fleet.

    `prefill_endpoint_id`, where not None, computes its prompt in place of the endpoint, which gets
    the blocks of it.
    """

    quote: Quote
    endpoint_id: EndpointId
    prefill_endpoint_id: EndpointId | None = None


class Served(msgspec.Struct, frozen=True):
    """The proxy reported the target that served the request; it may not be the one picked."""

    request_id: RequestId
    target: Target


class FirstToken(msgspec.Struct, frozen=True):
    """The first byte of a streamed body was seen: the prefill is over."""

    request_id: RequestId


class Generated(msgspec.Struct, frozen=True):
    """A streamed response has brought about `tokens` tokens so far."""

    request_id: RequestId
    tokens: int


class Finished(msgspec.Struct, frozen=True):
    """The response ended; `generated` tokens were streamed, where `usage` is None."""

    request_id: RequestId
    usage: Usage | None = None
    generated: int = 0


class Aborted(msgspec.Struct, frozen=True):
    """The exchange ended before its response did, after about `generated` tokens.

    `refused`: the endpoint never got the request.
    """

    request_id: RequestId
    generated: int = 0
    refused: bool = False


class Unobserved(msgspec.Struct, frozen=True):
    """The request was sent and nothing more of it will be seen."""

    request_id: RequestId


class ResponseRepeated(msgspec.Struct, frozen=True):
    """A prompt repeats the response to a request, whose generated blocks have these hashes.

    `anchor` is the last full block of that request's own prompt. `sizes` of the blocks are in
    tokens.
    """

    request_id: RequestId
    anchor: BlockHash
    hashes: Sequence[BlockHash]
    sizes: Sequence[int]


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
    | ResponseRepeated
    | CacheChanged
    | CacheFeedUp
    | CacheFeedLost
)
