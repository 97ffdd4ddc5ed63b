"""What an exchange is told to do."""

from collections.abc import Callable

import msgspec

from epp.model.request import InferenceRequest
from epp.protocol.extproc.record import RequestRecord

Headers = tuple[tuple[str, str], ...]
"""Names and values of headers to set."""


def _as_it_is(request: InferenceRequest) -> InferenceRequest:
    return request


class ExchangeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`max_body_bytes`: 413 beyond it. `header_sources` give response headers for the client.

    `request_orca` asks model servers for load reports in their response headers. `keep_body`
    hands the director the body of a request, for as long as that lasts. `leave`: close the stream
    once a streamed response has begun, where the proxy goes on alone. `resolve` sets what others
    than the client say of a request: its priority, and the model that is asked for.
    """

    max_body_bytes: int = 64 << 20
    header_sources: tuple[Callable[[RequestRecord], Headers], ...] = ()
    request_orca: bool = False
    keep_body: bool = False
    resolve: Callable[[InferenceRequest], InferenceRequest] = _as_it_is
    leave: bool = False
