"""The Status objects that the API server answers with, in its own words; knows no HTTP library.

Message forms follow k8s.io/apimachinery `api/errors` and the places that build on it.
"""

from typing import Any

import msgspec

Json = dict[str, Any]


class GroupResource(msgspec.Struct, frozen=True):
    """A resource as messages name it: `pods`, `leases.coordination.k8s.io`."""

    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


class Cause(msgspec.Struct, frozen=True):
    """One entry of `details.causes`."""

    reason: str
    message: str
    field: str


class ApiError(Exception):
    """An answer that is a Status of failure."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Json | None = None,
        metadata: Json | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.metadata = metadata or {}
        self.retry_after: int | None = None

    def body(self) -> Json:
        """The Status, fields in the order in which Go writes them, empty ones left out."""
        status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": self.metadata}
        status |= {"status": "Failure", "message": self.message}
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


class PlainTextError(Exception):
    """An answer given before any API machinery is reached: text, not a Status."""

    def __init__(self, code: int, text: str, retry_after: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.retry_after = retry_after


def _details(resource: GroupResource, name: str = "") -> Json:
    details = {"name": name, "group": resource.group, "kind": resource.resource}
    return {key: value for key, value in details.items() if value}


def success(resource: GroupResource, name: str, uid: str) -> Json:
    """What a DELETE that removed the object at once answers, for most kinds."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": _details(resource, name) | {"uid": uid},
    }


def no_such_path() -> PlainTextError:
    """An unknown path, group, version or custom resource: a text and no Status."""
    return PlainTextError(404, "404 page not found\n")


def no_such_resource() -> ApiError:
    """An unknown resource within a built-in group and version."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def not_found(resource: GroupResource, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', _details(resource, name))


def already_exists(resource: GroupResource, name: str) -> ApiError:
    return ApiError(
        409, "AlreadyExists", f'{resource} "{name}" already exists', _details(resource, name)
    )


def conflict(resource: GroupResource, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(resource, name))


def modified(resource: GroupResource, name: str) -> ApiError:
    """A write that names a resourceVersion which is no longer the object's."""
    why = (
        "the object has been modified; please apply your changes to the latest version"
        " and try again"
    )
    return conflict(resource, name, why)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def invalid(kind: GroupResource, name: str, causes: list[Cause]) -> ApiError:
    """422; `kind` holds the group and the Kind, or the resource where Kubernetes says that.

    One cause is written after the name, several in brackets.
    """
    told = [f"{cause.field}: {cause.message}" for cause in causes]
    said = told[0] if len(told) == 1 else f"[{', '.join(told)}]"
    listed = [msgspec.to_builtins(cause) for cause in causes]
    message = f'{kind} "{name}" is invalid: {said}'
    return ApiError(422, "Invalid", message, _details(kind, name) | {"causes": listed})


def forbidden(resource: GroupResource, name: str, why: str) -> ApiError:
    about = f'{resource} "{name}"' if name else str(resource)
    return ApiError(403, "Forbidden", f"{about} is forbidden: {why}", _details(resource, name))


def forbidden_path(user: str, verb: str, path: str) -> ApiError:
    message = f'forbidden: User "{user}" cannot {verb} path "{path}"'
    return ApiError(403, "Forbidden", message, {})


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def method_not_allowed() -> ApiError:
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, {})


def unsupported_media_type(accepted: list[str]) -> ApiError:
    message = (
        "the body of the request was in an unknown format - accepted media types include:"
        f" {', '.join(accepted)}"
    )
    return ApiError(415, "UnsupportedMediaType", message)


def expired(message: str, token: str = "") -> ApiError:
    """410 Expired: a resourceVersion or a continue token from before the last compaction.

    `token`, when given, goes on with the list, at the price of consistency.
    """
    return ApiError(410, "Expired", message, metadata={"continue": token} if token else {})


def too_large_version(asked: int, current: int) -> ApiError:
    """504: a read at a resourceVersion that the server has not reached."""
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    error = ApiError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})
    error.retry_after = 1
    return error


def internal(message: str) -> ApiError:
    text = f"Internal error occurred: {message}"
    return ApiError(500, "InternalError", text, {"causes": [{"message": message}]})


def too_many_requests(retry_after: int = 1) -> PlainTextError:
    """429 as priority and fairness gives it: text, with Retry-After in seconds."""
    text = "Too many requests, please try again later.\n"
    return PlainTextError(429, text, retry_after)


def unavailable() -> ApiError:
    message = "the server is currently unable to handle the request"
    return ApiError(503, "ServiceUnavailable", message, {})
