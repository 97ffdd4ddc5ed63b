"""The settings of an exchange."""

from collections.abc import Callable

import msgspec

from epp.model.request import InferenceRequest, Usage
from epp.protocol.bodies.apis import DEFAULT_APIS, ApiTable
from epp.protocol.extproc.record import RequestRecord

Headers = tuple[tuple[str, str], ...]
"""Names and values of headers to set."""

Reported = tuple[str, str, float]
"""A namespace of dynamic metadata, a key in it, and a value."""


def _unchanged(request: InferenceRequest) -> InferenceRequest:
    return request


class ExchangeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all exchanges of a picker share, except `end_early`."""

    max_body_bytes: int = 64 << 20
    """The longest request body; a longer one is answered with status 413."""
    header_sources: tuple[Callable[[RequestRecord], Headers], ...] = ()
    """Each gives response headers for the client."""
    request_orca: bool = False
    """Ask model servers for load reports in their response headers."""
    emit_scores: bool = False
    """Tell the proxy the score of each endpoint."""
    keep_body: bool = False
    """Hand the director the body of a request until it has decided."""
    resolve: Callable[[InferenceRequest], InferenceRequest] = _unchanged
    """Sets what others than the client say of a request: its priority, and the model asked for."""
    apis: ApiTable = DEFAULT_APIS
    """The APIs whose bodies are read, by path."""
    propagate_priority: bool = False
    """Write a request's priority into its body, for the engine's own scheduler."""
    reporters: tuple[Callable[[Usage], Reported | None], ...] = ()
    """Each gives a number about a response's usage.

    The proxy gets it as metadata with the last message of the response."""
    most_wait: float = 0.1
    """Seconds for which a decision may take where the proxy's `message_timeout` runs meanwhile.

    That is in every body mode but full duplex (Envoy 1.40)."""
    begin_span: Callable[[RequestRecord], Headers] | None = None
    """Begins the span of a request that was decided on; gives headers for the model server.

    None: there are no traces."""
    end_early: bool = False
    """Close the stream once a streamed response has begun.

    Only if the proxy goes on alone and the director needs no more."""
