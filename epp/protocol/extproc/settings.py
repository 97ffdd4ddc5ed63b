"""The settings of an exchange."""

from collections.abc import Callable

import msgspec

from epp.model.request import InferenceRequest, Usage
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.openai.apis import DEFAULT_APIS, ApiTable

Headers = tuple[tuple[str, str], ...]
"""Names and values of headers to set."""

Reported = tuple[str, str, float]
"""A namespace of dynamic metadata, a key in it, and a value."""


def _unchanged(request: InferenceRequest) -> InferenceRequest:
    return request


class ExchangeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all exchanges of a picker share, but for `end_early`.

    `max_body_bytes`: a larger request is answered with status 413. `header_sources` give response
    headers for the client. `request_orca` asks model servers for load reports in their response
    headers. `emit_scores` tells the proxy the score of each endpoint. `keep_body` hands the
    director the body of a request until it has decided. `resolve` sets what others than the client
    say of a request: its priority, and the model that is asked for. `apis` are the APIs whose
    bodies are read, by path. `propagate_priority` writes a request's priority into its body, for
    the engine's own scheduler. `reporters` give numbers about a response's usage, which the proxy
    gets as metadata with the last message of the response. `end_early`: close the stream once a
    streamed response has begun, where the proxy goes on alone and the director needs no more.
    """

    max_body_bytes: int = 64 << 20
    header_sources: tuple[Callable[[RequestRecord], Headers], ...] = ()
    request_orca: bool = False
    emit_scores: bool = False
    keep_body: bool = False
    resolve: Callable[[InferenceRequest], InferenceRequest] = _unchanged
    apis: ApiTable = DEFAULT_APIS
    propagate_priority: bool = False
    reporters: tuple[Callable[[Usage], Reported | None], ...] = ()
    end_early: bool = False
