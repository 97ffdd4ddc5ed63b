"""From a request on a resource to its answer, verb by verb; watches excepted (`server.py`)."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tests.kubeapi import listing, status
from tests.kubeapi.access import Access
from tests.kubeapi.answers import MERGE_PATCH, Answer, decoded, of_json
from tests.kubeapi.registry import Registry
from tests.kubeapi.request import Ask
from tests.kubeapi.status import GroupResource
from tests.kubeapi.writes import Target, merge

Json = dict[str, Any]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was let in. `media` is the content type without parameters."""

    registry: Registry
    access: Access
    ask: Ask
    target: Target
    body: bytes
    media: str


def target_of(registry: Registry, ask: Ask) -> Target:
    """The target of a request. Errors: 404, as text or as a Status."""
    kind = registry.kinds.get(GroupResource(ask.group, ask.resource))
    version = kind.version(ask.version) if kind is not None else None
    if kind is None or version is None:
        built_in = {each.group for each in registry.kinds.values() if not each.custom}
        raise status.no_such_resource() if ask.group in built_in else status.no_such_path()
    if ask.subresource not in ("", "status") or (ask.subresource and not version.status):
        raise status.no_such_path() if kind.custom else status.no_such_resource()
    return Target(
        kind=kind,
        version=ask.version,
        namespace=ask.namespace if kind.namespaced else "",
        name=ask.name if ask.verb not in ("list", "watch", "deletecollection") else "",
        subresource=ask.subresource,
    )


def _shown(call: Call, value: Json, code: int = 200) -> Answer:
    return of_json(listing.shown(call.target, value), code)


def _get(call: Call) -> Answer:
    return of_json(listing.one(call.registry, call.target, call.ask.query))


def _list(call: Call) -> Answer:
    return of_json(listing.many(call.registry, call.target, call.ask.query))


def _create(call: Call) -> Answer:
    body = decoded(call.body, call.media, call.target.kind.kind)
    kind = call.target.kind
    if kind.virtual:
        body = {"kind": kind.kind, "apiVersion": call.target.api_version, "metadata": {}} | body
        review = {
            "TokenReview": call.access.review_token,
            "SubjectAccessReview": call.access.review_access,
        }
        return of_json(review[kind.kind](body), 201)
    return _shown(call, call.registry.create(call.target, body), 201)


def _update(call: Call) -> Answer:
    body = decoded(call.body, call.media, call.target.kind.kind)
    value, created = call.registry.update(call.target, body)
    return _shown(call, value, 201 if created else 200)


def _patch(call: Call) -> Answer:
    if call.media != MERGE_PATCH:
        raise status.unsupported_media_type([MERGE_PATCH])
    patch = decoded(call.body, "", call.target.kind.kind)
    old = call.registry.find(call.target)
    body = merge(listing.shown(call.target, old), patch)
    return _shown(call, call.registry.replace(call.target, old, body))


def _delete(call: Call) -> Answer:
    gone = call.registry.remove(call.target)
    if call.target.kind.returns_deleted:
        return _shown(call, gone)
    uid = gone["metadata"]["uid"]
    return of_json(status.success(call.target.kind.resource, call.target.name, uid))


VERBS: Final[dict[str, Callable[[Call], Answer]]] = {
    "get": _get,
    "list": _list,
    "create": _create,
    "update": _update,
    "patch": _patch,
    "delete": _delete,
}


def answer(call: Call) -> Answer:
    """The answer to a request. Errors: ApiError, PlainTextError."""
    verb, target = call.ask.verb, call.target
    handler = VERBS.get(verb)
    nameless = verb in ("get", "update", "patch", "delete") and not target.name
    named = verb == "create" and bool(target.name)
    if handler is None or nameless or named or (target.kind.virtual and verb != "create"):
        raise status.method_not_allowed()
    return handler(call)
