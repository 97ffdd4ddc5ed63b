"""Answers as values, and the media types of requests and responses."""

from typing import Any, Final

import msgspec

from tests.kubeapi import status
from tests.kubeapi.status import ApiError, PlainTextError, bad_request

Json = dict[str, Any]
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One response, whole."""

    code: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: dict[str, str] = {}


def of_json(value: Json, code: int = 200) -> Answer:
    """JSON with a newline behind it, as Go writes it."""
    return Answer(code=code, body=msgspec.json.encode(value) + b"\n")


def of_error(error: ApiError | PlainTextError) -> Answer:
    """The response that an error is, with Retry-After in seconds where it has one."""
    after = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if isinstance(error, PlainTextError):
        return Answer(
            code=error.code,
            body=error.text.encode(),
            content_type="text/plain; charset=utf-8",
            headers=after,
        )
    return msgspec.structs.replace(of_json(error.body(), error.code), headers=after)


def decoded(raw: bytes, media: str, kind: str) -> Json:
    """The object in a body. Errors: ApiError 400, 415."""
    if media not in ("", JSON):
        raise status.unsupported_media_type([JSON])
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        said = f"the object provided is unrecognized (must be of type {kind}): {error}"
        raise bad_request(said) from None
    if not isinstance(value, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind})")
    return value
