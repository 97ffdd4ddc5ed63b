"""The codec of ext_proc: the compiled one where it was built, else generated code.

`decode` reads one `ProcessingRequest` and raises `ProtocolError`; `encode` writes one
`ProcessingResponse`.
"""

import msgspec

from epp.errors import RequestError
from epp.protocol.extproc.messages import ImmediateReply
from epp.protocol.extproc.names import DESTINATION, METHOD, SERVICE, ProtocolError

try:
    from epp.protocol.extproc.compiled_codec import decode, encode
except ImportError:
    from epp.protocol.extproc.protobuf import decode, encode

__all__ = ["DESTINATION", "METHOD", "SERVICE", "ProtocolError", "decode", "encode", "error_reply"]


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


def error_reply(error: RequestError) -> ImmediateReply:
    """Say an error to a client in OpenAI's form, with its cause in a header for machines."""
    body = {"error": _Error(str(error), error.kind, None, error.reason)}
    headers = [("content-type", "application/json"), ("x-warmpick-reason", error.reason)]
    if error.dropped_reason:
        headers.append(("x-llm-d-request-dropped-reason", error.dropped_reason))
    if error.retry_after is not None:
        headers.append(("retry-after", str(error.retry_after)))
    return ImmediateReply(
        error.status, tuple(headers), msgspec.json.encode(body), f"warmpick_{error.reason}"
    )
