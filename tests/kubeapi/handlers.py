"""From a request on a resource to its answer, verb by verb; watches excepted (`server.py`)."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tests.kubeapi import listing, patches, status, structural
from tests.kubeapi.access import Access, Identity
from tests.kubeapi.answers import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    Answer,
    decoded,
    decoded_patch,
    of_json,
)
from tests.kubeapi.builtin import undecodable
from tests.kubeapi.registry import Registry
from tests.kubeapi.request import Ask, is_true
from tests.kubeapi.status import ApiError, Cause, GroupResource
from tests.kubeapi.strategic import strategic_merge
from tests.kubeapi.writing import How, Target

Json = dict[str, Any]
SUBRESOURCES: Final = ("", "status")
OF_ONE: Final = ("get", "update", "patch", "delete")


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was let in. `media` is the content type without parameters."""

    registry: Registry
    access: Access
    ask: Ask
    who: Identity
    target: Target
    body: bytes
    media: str
    how: How


def target_of(registry: Registry, ask: Ask) -> Target:
    """The target of a request. Errors: 404, as text or as a Status, as the real one tells them."""
    kind = registry.kinds.get(GroupResource(ask.group, ask.resource))
    version = kind.version(ask.version) if kind is not None else None
    if kind is None or version is None:
        built_in = {each.group for each in registry.kinds.values() if not each.custom}
        raise status.no_such_resource() if ask.group in built_in else status.no_such_path()
    if ask.subresource not in SUBRESOURCES or (ask.subresource == "status" and not version.status):
        raise status.no_such_path() if kind.custom else status.no_such_resource()
    return Target(
        kind=kind,
        version=ask.version,
        namespace=ask.namespace if kind.namespaced else "",
        name=ask.name if ask.verb not in ("list", "watch", "deletecollection") else "",
        subresource=ask.subresource,
    )


def how_of(ask: Ask, agent: str, media: str) -> How:
    """The options of a write. Errors: ApiError 422 for apply without a field manager."""
    manager = ask.query.get("fieldManager", "")
    if media == APPLY_PATCH and ask.verb == "patch" and not manager:
        said = "Required value: is required for apply patch"
        options = GroupResource("meta.k8s.io", "PatchOptions")
        cause = Cause("FieldValueRequired", said, "fieldManager")
        raise status.invalid(options, "", [cause])
    return How(
        manager=manager or agent.partition("/")[0] or "unknown",
        dry_run=ask.query.get("dryRun") == "All",
        force=is_true(ask.query, "force"),
    )


def _warnings(call: Call, body: Json) -> list[str]:
    """Unknown fields of a custom resource, unless they are refused. Errors: ApiError 400."""
    validation = call.ask.query.get("fieldValidation") or "Warn"
    if call.target.schema is None or validation == "Ignore":
        return []
    found = [f'unknown field "{path}"' for path in structural.unknown(call.target.schema, body)]
    if found and validation == "Strict":
        raise undecodable(call.target.kind, body, f"strict decoding error: {', '.join(found)}")
    return [each.replace('"', '\\"') for each in found]


def _shown(call: Call, value: Json, code: int, warnings: list[str]) -> Answer:
    return of_json(listing.shown(call.target, value), code, warnings)


def _get(call: Call) -> Answer:
    return of_json(listing.one(call.registry, call.target, call.ask.query))


def _list(call: Call) -> Answer:
    return of_json(listing.many(call.registry, call.target, call.ask.query))


def _create(call: Call) -> Answer:
    body = decoded(call.body, call.media, call.target.kind)
    if call.target.kind.virtual:
        return _review(call, body)
    if call.ask.name:
        raise status.method_not_allowed()
    warnings = _warnings(call, body)
    return _shown(call, call.registry.create(call.target, body, call.how), 201, warnings)


def _review(call: Call, body: Json) -> Answer:
    head = {"kind": call.target.kind.kind, "apiVersion": call.target.api_version, "metadata": {}}
    body = head | body
    if call.target.kind.kind == "TokenReview":
        return of_json(call.access.review_token(body), 201)
    return of_json(call.access.review_access(body, call.who), 201)


def _update(call: Call) -> Answer:
    body = decoded(call.body, call.media, call.target.kind)
    warnings = _warnings(call, body)
    value, created = call.registry.update(call.target, body, call.how)
    return _shown(call, value, 201 if created else 200, warnings)


def _patch(call: Call) -> Answer:
    patch = decoded_patch(call.body, call.media, call.target.kind)
    if call.media == APPLY_PATCH:
        return _apply(call, patch)
    old = call.registry.find(call.target)
    body = _patched(listing.shown(call.target, old), patch, call.media)
    try:
        warnings = _warnings(call, body)
        value = call.registry.replace(call.target, old, body, call.how)
    except status.Undecodable as error:
        text = msgspec.json.encode(body).decode()
        raise status.invalid_patch(text, error.why) from None
    return _shown(call, value, 200, warnings)


def _apply(call: Call, said: Json) -> Answer:
    """Fields that the schema does not declare are an error here, whatever is asked for."""
    target = call.target
    unknown = [] if target.schema is None else structural.unknown(target.schema, said)
    if unknown:
        where = f"{target.namespace}/{target.name}; {target.api_version}, Kind={target.kind.kind}"
        told = "; ".join(f".{path}: field not declared in schema" for path in unknown)
        raise ApiError(500, "", f"failed to create typed patch object ({where}): {told}")
    value, created = call.registry.apply(target, said, call.how)
    return _shown(call, value, 201 if created else 200, [])


def _patched(value: Json, patch: Any, media: str) -> Json:
    if media == JSON_PATCH:
        return patches.json_patch(value, patch)
    if not isinstance(patch, dict):
        raise status.bad_request("error decoding patch: json: cannot unmarshal into a map")
    merged: Json = (patches.merge if media == MERGE_PATCH else strategic_merge)(value, patch)
    return merged


def _options(call: Call) -> Json:
    """DeleteOptions, from the body or from the query."""
    said = decoded(call.body, call.media, call.target.kind) if call.body.strip() else {}
    if "gracePeriodSeconds" in call.ask.query:
        said = {"gracePeriodSeconds": int(call.ask.query["gracePeriodSeconds"])} | said
    return said


def _delete(call: Call) -> Answer:
    options = _options(call)
    how = call.how
    if "All" in (options.get("dryRun") or ()):
        how = msgspec.structs.replace(how, dry_run=True)
    value, gone = call.registry.delete(call.target, options, how)
    if gone and not call.target.kind.returns_deleted:
        uid = value["metadata"]["uid"]
        return of_json(status.success(call.target.resource, call.target.name, uid))
    return of_json(listing.shown(call.target, value))


def _delete_collection(call: Call) -> Answer:
    options = _options(call)
    matches = listing.selected(call.target, call.ask.query)
    gone = []
    for place, value in sorted(call.registry.store.everything(call.target.resource).items()):
        if matches(value):
            each = msgspec.structs.replace(call.target, namespace=place[0], name=place[1])
            gone.append(call.registry.delete(each, options, call.how)[0])
    meta = {"resourceVersion": str(call.registry.store.revision)}
    return of_json(listing.listed(call.target, gone, meta))


VERBS: Final[dict[str, Callable[[Call], Answer]]] = {
    "get": _get,
    "list": _list,
    "create": _create,
    "update": _update,
    "patch": _patch,
    "delete": _delete,
    "deletecollection": _delete_collection,
}


def answer(call: Call) -> Answer:
    """Errors: ApiError, PlainTextError."""
    verb, target = call.ask.verb, call.target
    handler = VERBS.get(verb)
    nameless = verb in OF_ONE and not target.name
    if handler is None or nameless or (target.kind.virtual and verb != "create"):
        raise status.method_not_allowed()
    return handler(call)
