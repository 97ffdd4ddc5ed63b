"""The errors of this package, as types without a transport or a message format.

    WarmpickError
    ├── ConfigError            what an operator wrote cannot be used
    └── RequestError           answers a client in the model server's place, with an HTTP status
        ├── MalformedRequest   400
        ├── UnknownModel       404
        ├── RequestTimeout     408
        ├── NotCached          412
        ├── BodyTooLarge       413
        ├── UnsupportedCoding  415
        ├── Overloaded         429
        │   ├── EndpointsFull  429, a NoEndpoints too
        │   └── WaitedTooLong  429
        ├── PickerFault        500
        └── NoEndpoints        503
            └── ShuttingDown   503

The core raises; only `epp.protocol.extproc.errors` turns a `RequestError` into a reply.
"""

import re
from typing import ClassVar

FAULTS = (BaseException,)
"""What the code of a plug-in may raise while the picker serves, and must end nothing but its call.

Signals are not among them: the event loop takes them as calls (`epp.app.process.stop_signals`).
"""
AWAITED_FAULTS = (Exception, SystemExit, KeyboardInterrupt)
"""The same of what is awaited, where anything else ends the coroutine that awaits."""

_LONGEST_PLACE, _LONGEST_PROBLEM = 300, 1000
_NUMBERS = r"^\[Errno \d+\] |^\[(?:SSL|X509)[^]]*\] |^_ssl\.c:\d+: | \(_ssl\.c:\d+\)$"
"""How Python marks an error of the system, and one of OpenSSL."""


class WarmpickError(Exception):
    """Root of every error that this package raises on purpose."""


class ConfigError(WarmpickError):
    """A configuration or command line that cannot be used.

    `place` names where in the configuration (for example `plugins[2].parameters.weight`),
    `problem` is the message without it. What is long in them is left out.
    """

    def __init__(self, message: str, place: str = "") -> None:
        self.place = _without_middle(place, _LONGEST_PLACE)
        self.problem = _without_middle(message, _LONGEST_PROBLEM)
        super().__init__(f"{self.place}: {self.problem}" if place else self.problem)


def reason(error: Exception) -> str:
    """Return why something failed, as the system says it, without numbers of errors."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return re.sub(_NUMBERS, "", said)


def _without_middle(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


class RequestError(WarmpickError):
    """An error response that the picker sends in place of the model server's response.

    `status` is the HTTP status, `kind` the `error.type` of OpenAI's error form, `reason` the
    machine-readable cause that travels in `x-warmpick-reason`. `dropped_reason`, where set, is
    llm-d-router's word for the same cause (`x-llm-d-request-dropped-reason`), `code` its
    canonical error code (the `error_code` label of its metrics), `retry_after` a number of
    seconds. `waited` is for how many seconds flow control held the request; None: it was not asked.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal_error"
    code: ClassVar[str] = "Internal"
    dropped_reason: ClassVar[str] = ""
    default_reason: ClassVar[str] = "internal"

    def __init__(self, message: str, *, reason: str = "", retry_after: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason or self.default_reason
        self.retry_after = retry_after
        self.waited: float | None = None


class MalformedRequest(RequestError):
    """The body is not what its path promises."""

    status = 400
    kind = "invalid_request_error"
    code = "BadRequest"
    default_reason = "malformed-request"


class UnknownModel(RequestError):
    """No endpoint serves the model, and all have said which they do."""

    status = 404
    kind = "invalid_request_error"
    code = "NotFound"
    default_reason = "model-not-found"


class NotCached(RequestError):
    """The client wants an endpoint that has its prompt's prefix cached, and there is none."""

    status = 412
    kind = "invalid_request_error"
    code = "PreconditionFailed"
    default_reason = "not-cached"


class RequestTimeout(RequestError):
    """The request did not end in time."""

    status = 408
    kind = "invalid_request_error"
    code = "RequestTimeout"
    default_reason = "request-timeout"


class BodyTooLarge(RequestError):
    """The body is larger than the configured limit."""

    status = 413
    kind = "invalid_request_error"
    code = "PayloadTooLarge"
    default_reason = "body-too-large"


class UnsupportedCoding(RequestError):
    """The body is compressed (RFC 9110 §15.5.16: 415 for a content coding, too)."""

    status = 415
    kind = "invalid_request_error"
    code = "UnsupportedMediaType"
    default_reason = "unsupported-content-encoding"


class Overloaded(RequestError):
    """The request is shed because the pool cannot take it now."""

    # GIE proposal 004: 429 for a request that is dropped, 503 if no endpoint is ready.

    status = 429
    kind = "overloaded_error"
    code = "ResourceExhausted"
    dropped_reason = "rejected-saturated"
    default_reason = "overloaded"


class PickerFault(RequestError):
    """The picker, or one of its plug-ins, failed; nothing the client sent is to blame."""


class NoEndpoints(RequestError):
    """No endpoint is eligible: none is ready, or none of the gateway's subset is (GIE 004)."""

    status = 503
    kind = "service_unavailable_error"
    code = "ServiceUnavailable"
    dropped_reason = "rejected-no-endpoints"
    default_reason = "no-endpoints"


class EndpointsFull(Overloaded, NoEndpoints):
    """Every endpoint has as much as the configuration allows it: 429, for it is the load."""

    default_reason = "endpoints-full"


class WaitedTooLong(Overloaded):
    """The request waited in the picker until its time to live was over."""

    dropped_reason = "rejected-ttl-expired"
    default_reason = "ttl-expired"


class ShuttingDown(NoEndpoints):
    """The request waited in a picker that stops."""

    dropped_reason = "rejected-shutting-down"
    default_reason = "shutting-down"
