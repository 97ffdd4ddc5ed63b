"""The two errors of the protocol: one that a client is answered with, one that a peer makes."""

import msgspec

from epp.errors import RequestError
from epp.protocol.extproc.debug_headers import milliseconds
from epp.protocol.extproc.messages import ImmediateReply
from epp.protocol.extproc.names import QUEUE_DURATION


class ProtocolError(Exception):
    """The peer sent bytes that are not an ext_proc message."""


def unknown_mode(number: int) -> ProtocolError:
    """Return the error for a body mode that Envoy's `ProcessingMode.BodySendMode` lacks."""
    return ProtocolError(f"unknown body mode {number}")


class _OpenAiError(msgspec.Struct):
    """The `error` object of OpenAI's API, with all its members."""

    message: str
    type: str
    param: str | None
    code: str


def error_reply(error: RequestError) -> ImmediateReply:
    """Return the reply that answers a client with an error, in the model server's place.

    The body has OpenAI's form. The cause stands in headers too, for machines: the picker's own
    word for it, and llm-d-router's if it has one. `retry-after` is in seconds (RFC 9110
    §10.2.3). `details` goes into Envoy's access log (`%RESPONSE_CODE_DETAILS%`).
    """
    body = {"error": _OpenAiError(str(error), error.kind, None, error.reason)}
    headers = [("content-type", "application/json"), ("x-warmpick-reason", error.reason)]
    if error.dropped_reason:
        headers.append(("x-llm-d-request-dropped-reason", error.dropped_reason))
    if error.retry_after is not None:
        headers.append(("retry-after", str(error.retry_after)))
    if error.waited is not None:
        headers.append((QUEUE_DURATION, milliseconds(error.waited)))
    return ImmediateReply(
        error.status, tuple(headers), msgspec.json.encode(body), f"warmpick_{error.reason}"
    )
