"""The target of a write, and the steps of a write that need no store."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tests.kubeapi import status
from tests.kubeapi.kinds import Kind, Version
from tests.kubeapi.status import Cause, bad_request
from tests.kubeapi.store import Place

Json = dict[str, Any]
# metav1.MicroTime parses six decimals and no other number of them.
MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
FIRST_STATUS: Final[dict[str, Json]] = {"Pod": {"phase": "Pending"}}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The object, or without a name the collection, that a request is about."""

    kind: Kind
    version: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def place(self) -> Place:
        return (self.namespace, self.name)

    @property
    def api_version(self) -> str:
        return self.kind.api_version(self.version)

    @property
    def described(self) -> Version:
        return next(each for each in self.kind.versions if each.name == self.version)


def stamp() -> str:
    """The present time as metav1.Time writes it: UTC, whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def without(value: Json, names: Iterable[str]) -> Json:
    return {name: part for name, part in value.items() if name not in names}


def merge(value: Any, patch: Any) -> Any:
    """JSON merge patch. RFC 7396 §2: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, part in patch.items():
        if part is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), part)
    return merged


def addressed(target: Target, body: Json) -> Json:
    """A copy of the body whose kind, name and namespace are those of the URL.

    Errors: ApiError 400 where they contradict it, or where the body does not fit Go's type.
    """
    _check_kind(target, body)
    meta = dict(body.get("metadata") or {})
    name, namespace = meta.get("name", ""), meta.get("namespace", "")
    if namespace and namespace != target.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if target.name and name and name != target.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )
    meta |= {"name": target.name} if target.name else {}
    meta |= {"namespace": target.namespace} if target.kind.namespaced else {}
    if target.kind.kind == "Lease":
        _check_micro_times(body)
    head = {"kind": target.kind.kind, "apiVersion": target.kind.api_version(target.kind.storage)}
    return head | {"metadata": meta} | without(body, ("kind", "apiVersion", "metadata"))


def _check_kind(target: Target, body: Json) -> None:
    kind, version, wanted = body.get("kind", ""), body.get("apiVersion", ""), target.kind.kind
    if target.kind.custom and not kind:
        raise bad_request(
            f"the object provided is unrecognized (must be of type {wanted}):"
            " Object 'Kind' is missing in the body"
        )
    if kind and kind != wanted:
        raise bad_request(
            f'{kind} in version "{target.version}" cannot be handled as a {wanted}: no kind'
        )
    if version and version != target.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version"
            f" ({target.api_version})"
        )


def _check_micro_times(body: Json) -> None:
    for field in ("acquireTime", "renewTime"):
        text = (body.get("spec") or {}).get(field)
        if text is not None and not MICRO_TIME.fullmatch(str(text)):
            raise bad_request(
                'Lease in version "v1" cannot be handled as a Lease: parsing time'
                f' "{text}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "{text}"'
            )


def lease_breaches(value: Json) -> Iterator[Cause]:
    """What Kubernetes' ValidateLeaseSpec refuses."""
    spec = value.get("spec") or {}
    for field, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
        number = spec.get(field)
        if number is not None and number < least:
            bound = "greater than 0" if least else "greater than or equal to 0"
            message = f"Invalid value: {number}: must be {bound}"
            yield Cause("FieldValueInvalid", message, f"spec.{field}")


def check_version(target: Target, old: Json, body: Json) -> None:
    """Optimistic concurrency. Errors: ApiError 409, and 422 where a version must be named."""
    named, held = body["metadata"].get("resourceVersion"), old["metadata"]["resourceVersion"]
    uid, old_uid = body["metadata"].get("uid"), old["metadata"]["uid"]
    if uid and uid != old_uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}"
        raise status.conflict(target.kind.resource, target.name, why)
    if named and named != held:
        raise status.modified(target.kind.resource, target.name)
    if not named and not target.kind.unconditional:
        message = "Invalid value: 0x0: must be specified for an update"
        cause = Cause("FieldValueInvalid", message, "metadata.resourceVersion")
        raise status.invalid(target.kind.resource, target.name, [cause])


def first_status(target: Target, value: Json, *, trusted: bool) -> Json:
    """A created object: where status is a subresource, what the body holds of it is dropped."""
    if not target.described.status:
        return value
    given = value.get("status") or {} if trusted else {}
    first = FIRST_STATUS.get(target.kind.kind, {}) | given
    return without(value, ["status"]) | ({"status": first} if first else {})


def isolated(target: Target, old: Json, value: Json) -> Json:
    """Where status is a subresource: a write to it changes nothing else, and none other does."""
    if not target.described.status:
        return value
    status_of = value if target.subresource == "status" else old
    rest = old if target.subresource == "status" else value
    kept = without(rest, ["status"])
    return kept | ({"status": status_of["status"]} if "status" in status_of else {})
