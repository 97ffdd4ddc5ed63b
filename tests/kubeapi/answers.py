"""Answers as values, and how bodies are read: media types of requests and responses."""

from typing import Any, Final

import msgspec
import yaml

from tests.kubeapi import status
from tests.kubeapi.kinds import Kind
from tests.kubeapi.status import ApiError, PlainTextError, bad_request

Json = dict[str, Any]
JSON: Final = "application/json"
YAML: Final = "application/yaml"
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
ANYTHING: Final = ("*/*", "application/*")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One response, whole."""

    code: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: dict[str, str] = {}


def of_json(value: Json, code: int = 200, warnings: list[str] | None = None) -> Answer:
    """JSON with a newline behind it, as Go writes it."""
    headers = {"Warning": ", ".join(f'299 - "{each}"' for each in warnings)} if warnings else {}
    return Answer(code=code, body=msgspec.json.encode(value) + b"\n", headers=headers)


def of_text(text: str, code: int = 200) -> Answer:
    return Answer(code=code, body=text.encode(), content_type="text/plain; charset=utf-8")


def of_error(error: ApiError | PlainTextError) -> Answer:
    """The response that an error is, with Retry-After in seconds where it has one."""
    after = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if isinstance(error, PlainTextError):
        return msgspec.structs.replace(of_text(error.text, error.code), headers=after)
    return msgspec.structs.replace(of_json(error.body(), error.code), headers=after)


def check_accept(accept: str, kind: Kind | None = None) -> None:
    """Errors: ApiError 406 where nothing that can be said is wanted."""
    wanted = [each.partition(";")[0].strip() for each in accept.split(",") if each.strip()]
    if wanted and not any(each in (JSON, *ANYTHING) for each in wanted):
        raise status.not_acceptable(_accepted(kind))


def _accepted(kind: Kind | None) -> list[str]:
    return [JSON, YAML] if kind is not None and kind.custom else [JSON, YAML, PROTOBUF]


def patch_types(kind: Kind) -> list[str]:
    """The media types of PATCH that a kind takes; custom resources know no strategic merge."""
    strategic = [] if kind.custom else [STRATEGIC_PATCH]
    return [JSON_PATCH, MERGE_PATCH, *strategic, APPLY_PATCH]


def decoded(raw: bytes, content_type: str, kind: Kind) -> Json:
    """The object in a body. Errors: ApiError 400, 415."""
    media = content_type.partition(";")[0].strip().lower()
    if media not in ("", JSON, YAML):
        raise status.unsupported_media_type(_accepted(kind))
    value = _parsed(raw, media or JSON, kind.kind)
    if not isinstance(value, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind.kind})")
    return value


def decoded_patch(raw: bytes, media: str, kind: Kind) -> Any:
    """The content of a PATCH. Errors: ApiError 400, 415."""
    if media not in patch_types(kind):
        raise status.unsupported_media_type(patch_types(kind))
    return _parsed(raw, YAML if media == APPLY_PATCH else JSON, kind.kind)


def _parsed(raw: bytes, media: str, kind: str) -> Any:
    try:
        return yaml.safe_load(raw) if media == YAML else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = f"the object provided is unrecognized (must be of type {kind}): {error}"
        raise bad_request(said) from None
