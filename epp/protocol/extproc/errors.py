"""What the picker answers itself: errors, and the list of models; and faults of the peer."""

from typing import Final

import msgspec

from epp.errors import PickerFault, RequestError, UnsupportedCoding
from epp.protocol.extproc.debug_headers import milliseconds
from epp.protocol.extproc.messages import (
    ImmediateReply,
    Reply,
    RequestBody,
    RequestTrailers,
)
from epp.protocol.extproc.names import DROPPED_REASON, QUEUE_DURATION, REASON


class ProtocolError(Exception):
    """The peer sent bytes that are not an ext_proc message."""


def unknown_mode(number: int) -> ProtocolError:
    """Return the error for a body mode that Envoy's `ProcessingMode.BodySendMode` lacks."""
    return ProtocolError(f"unknown body mode {number}")


def _headers_not_shown(*_: object) -> list[Reply]:
    problem = "the gateway does not show the picker the headers of requests; `request_header_mode`"
    raise PickerFault(f"{problem} must be SEND", reason="headers-not-shown")


UNDECIDABLE: Final = dict.fromkeys((RequestBody, RequestTrailers), _headers_not_shown)
"""Handlers of a request of which the proxy shows a later part alone, and waits for an answer.

Envoy's `request_header_mode: SKIP` does so.
"""


def models_reply(models: bytes) -> ImmediateReply:
    """Return the reply that sends the client a list of models, which is JSON."""
    return ImmediateReply(200, (("content-type", "application/json"),), models, "warmpick_models")


def error_reply(error: RequestError) -> ImmediateReply:
    """Return the reply that sends the client an error instead of the model server's response.

    The body has OpenAI's form, and with its outer `type` Anthropic's. Headers also contain the
    cause, for machines: the picker's own word, and llm-d-router's if there is one. `retry-after` is
    in seconds (RFC 9110 §10.2.3). `details` goes into Envoy's access log
    (`%RESPONSE_CODE_DETAILS%`).
    """
    told = {"message": str(error), "type": error.kind, "param": None, "code": error.reason}
    body = msgspec.json.encode({"type": "error", "error": told})
    headers = [("content-type", "application/json"), (REASON, error.reason)]
    if error.dropped_reason:
        headers.append((DROPPED_REASON, error.dropped_reason))
    if isinstance(error, UnsupportedCoding):
        headers.append(("accept-encoding", "identity"))  # RFC 9110 §15.5.16
    if error.retry_after is not None:
        headers.append(("retry-after", str(error.retry_after)))
    if error.waited is not None:
        headers.append((QUEUE_DURATION, milliseconds(error.waited)))
    return ImmediateReply(error.status, tuple(headers), body, f"warmpick_{error.reason}")
