"""Reads of stored objects: one, or a list with selectors, pages and resource versions."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tests.kubeapi import schemas, selectors, status
from tests.kubeapi.registry import Registry
from tests.kubeapi.selectors import ObjectTest
from tests.kubeapi.status import Cause, bad_request
from tests.kubeapi.store import Compacted, Place
from tests.kubeapi.writes import Target, without

Json = dict[str, Any]
NOT_SERVED: Final = {"resourceVersionMatch", "sendInitialEvents"}
TOO_OLD: Final = "The resourceVersion for the provided list is too old."
CONTINUE_TOO_OLD: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start"
    " a new list without the continue parameter, or use the continue token in this response to"
    " retrieve the remainder of the results. Continuing with the provided token results in an"
    " inconsistent list - objects that were created, modified, or deleted between the time the"
    " first chunk was returned and now may show up in the list."
)


def shown(target: Target, value: Json) -> Json:
    """An object in the version that was asked for."""
    if value["apiVersion"] == target.api_version:
        return value
    # A CRD without a conversion webhook: another apiVersion, and what its schema does not know
    # is left out.
    schema = target.described.schema or {schemas.KEEP: True}
    return schemas.pruned(schema, value | {"apiVersion": target.api_version})


def selected(target: Target, query: Json) -> ObjectTest:
    """The test of a request's namespace and selectors together. Errors: ApiError 400."""
    for option in NOT_SERVED & query.keys():
        raise bad_request(f"{option} is not served by the Kubernetes API of the tests")
    labels = selectors.label_selector(query.get("labelSelector", ""))
    fields = selectors.field_selector(
        query.get("fieldSelector", ""), target.kind.fields, target.kind.unsupported_field
    )
    namespace = target.namespace if target.kind.namespaced else ""

    def matches(value: Json) -> bool:
        if namespace and value["metadata"]["namespace"] != namespace:
            return False
        return labels(value) and fields(value)

    return matches


def version_of(target: Target, query: Json) -> int | None:
    """The resourceVersion asked for; None where none is. Errors: ApiError 422."""
    text = query.get("resourceVersion", "")
    if text and not text.isdigit():
        why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        cause = Cause("FieldValueInvalid", why, "resourceVersion")
        raise status.invalid(target.kind.resource, "", [cause])
    return int(text) if text else None


def one(registry: Registry, target: Target, query: Json) -> Json:
    """GET of one object. Errors: ApiError 404, 504."""
    _reached(registry, version_of(target, query) or 0)
    return shown(target, registry.find(target))


def many(registry: Registry, target: Target, query: Json) -> Json:
    """A list. Errors: ApiError 400, 410, 422, 504."""
    limit = int(query.get("limit") or 0)
    if query.get("resourceVersion") == "0":
        limit = 0  # the watch cache answers, and it knows no pages
    at, start = _where(registry, target, query, limit)
    found = _sorted(_state(registry, target, at, query).items(), start)
    matches = selected(target, query)
    items = [(place, value) for place, value in found if matches(value)]
    page = items[:limit] if limit else items
    meta: Json = {"resourceVersion": str(at if at is not None else registry.store.revision)}
    if len(page) < len(items):
        meta["continue"] = _token(int(meta["resourceVersion"]), page[-1][0])
        if not (query.get("labelSelector") or query.get("fieldSelector")):
            meta["remainingItemCount"] = len(items) - len(page)
    return listed(target, [value for _, value in page], meta)


def listed(target: Target, values: Iterable[Json], meta: Json) -> Json:
    """The list object; items of built-in kinds leave out their kind, as Go's types do."""
    if target.kind.custom:
        items = [shown(target, value) for value in values]
    else:
        items = [without(value, ("kind", "apiVersion")) for value in values]
    head = {"kind": f"{target.kind.kind}List", "apiVersion": target.api_version}
    return head | {"metadata": meta, "items": items}


def _where(
    registry: Registry, target: Target, query: Json, limit: int
) -> tuple[int | None, Place | None]:
    """The revision to read at (None: the latest) and the place after which to go on."""
    if query.get("continue"):
        if query.get("resourceVersion") not in (None, "", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        revision, start = _resumed(query["continue"])
        return (None if revision < 0 else revision), start
    asked = version_of(target, query)
    if not asked:
        return None, None
    _reached(registry, asked)
    return (asked if limit else None), None  # a version with a limit is exact


def _reached(registry: Registry, revision: int) -> None:
    """Kubernetes waits three seconds for the revision before it gives up; here none comes."""
    if revision > registry.store.revision:
        raise status.too_large_version(revision, registry.store.revision)


def _state(registry: Registry, target: Target, at: int | None, query: Json) -> dict[Place, Json]:
    if at is None:
        return registry.store.everything(target.kind.resource)
    try:
        return registry.store.snapshot(target.kind.resource, at)
    except Compacted:
        if not query.get("continue"):
            raise status.expired(TOO_OLD) from None
        _, start = _resumed(query["continue"])
        raise status.expired(CONTINUE_TOO_OLD, _token(-1, start)) from None


def _sorted(items: Iterable[tuple[Place, Json]], start: Place | None) -> list[tuple[Place, Json]]:
    ordered = sorted(items, key=lambda item: item[0])
    return ordered if start is None else [item for item in ordered if item[0] > start]


def _token(revision: int, place: Place) -> str:
    said = {"v": "meta.k8s.io/v1", "rv": revision, "start": "/".join(place) + "\0"}
    return base64.urlsafe_b64encode(msgspec.json.encode(said)).decode().rstrip("=")


def _resumed(token: str) -> tuple[int, Place]:
    try:
        padded = token + "=" * (-len(token) % 4)
        said = msgspec.json.decode(base64.urlsafe_b64decode(padded))
        namespace, name = said["start"].rstrip("\0").split("/", 1)
        return int(said["rv"]), (namespace, name)
    except (binascii.Error, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise bad_request(f"continue key is not valid: {error}") from None
