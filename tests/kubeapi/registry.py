"""What a write does to stored objects: the same rules for every kind, in the server's order.

Mirrors `registry/generic/registry/store.go` and the `rest` package of the API server. Reads no
request and writes no response; `listing.py` and `watch.py` read what is stored here.
"""

import secrets
import uuid
from collections.abc import Callable
from typing import Any, Final

from tests.kubeapi import builtin, crds, managed, metadata, status, structural, validation
from tests.kubeapi.kinds import BUILT_IN, Kind
from tests.kubeapi.status import ApiError, Cause, GroupResource, bad_request
from tests.kubeapi.store import Place, Store
from tests.kubeapi.writing import (
    KEPT_TOO,
    How,
    Target,
    addressed,
    check_preconditions,
    check_version,
    counted,
    first_status,
    grace,
    is_finished,
    isolated,
    marked_for_deletion,
    with_fixed_metadata,
    without,
    writer,
)

Json = dict[str, Any]
SUFFIX: Final = "bcdfghjklmnpqrstvwxz2456789"  # apimachinery's alphabet of generated names
NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
NAMESPACE: Final = GroupResource("", "namespaces")
ACCOUNT: Final = GroupResource("", "serviceaccounts")
SERVER: Final = How(manager="kube-apiserver", trusted=True)


class Registry:
    """The kinds that are served and the rules by which their objects change.

    `withdrawn` are called with each resource whose definition is deleted.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.kinds: dict[GroupResource, Kind] = {kind.resource: kind for kind in BUILT_IN}
        self.withdrawn: list[Callable[[GroupResource], None]] = []
        for name in NAMESPACES:
            self.create(self.at(NAMESPACE), {"metadata": {"name": name}}, SERVER)

    def at(self, resource: GroupResource, namespace: str = "", name: str = "") -> Target:
        """A target in the version in which its objects are kept. Errors: KeyError."""
        kind = self.kinds[resource]
        return Target(kind=kind, version=kind.stored_as, namespace=namespace, name=name)

    def find(self, target: Target) -> Json:
        """The object at a target. Errors: ApiError 404."""
        found = self.store.get(target.resource, target.place)
        if found is None:
            raise status.not_found(target.resource, target.name)
        return found

    def create(self, target: Target, body: Json, how: How) -> Json:
        """Errors: ApiError 400, 404 for the namespace, 409 for the name, 422, 500."""
        value = self._born(target, addressed(target, body), how)
        value = managed.updated(None, value, writer(target, how), metadata.stamp())
        place = (target.namespace, value["metadata"]["name"])
        return self._stored(target, place, value, how)

    def _born(self, target: Target, body: Json, how: How) -> Json:
        """The object that a create stores, but for who owns its fields."""
        meta = body["metadata"]
        if meta.get("generateName") and not meta.get("name"):
            meta["name"] = meta["generateName"] + "".join(secrets.choice(SUFFIX) for _ in range(5))
        if meta.get("resourceVersion"):
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        self._namespace_exists(target)
        value = first_status(target, self._filled(target, body), how)
        born: Json = {"uid": str(uuid.uuid4()), "creationTimestamp": metadata.stamp()}
        born |= {"generation": 1} if target.kind.generation else {}
        given = value["metadata"] if how.trusted else {}
        born = {name: given.get(name, part) for name, part in born.items()}
        value = value | {"metadata": without(value["metadata"], KEPT_TOO) | born}
        self._validate(target, value, None)
        name = value["metadata"]["name"]
        if self.store.get(target.resource, (target.namespace, name)) is not None:
            raise status.already_exists(target.resource, name)
        return value

    def update(self, target: Target, body: Json, how: How) -> tuple[Json, bool]:
        """PUT; also whether it created. Errors: ApiError 400, 404, 409, 422."""
        old = self.store.get(target.resource, target.place)
        if old is None and target.kind.upsert and not target.subresource:
            return self.create(target, body, how), True
        return self.replace(target, self.find(target), body, how), False

    def replace(self, target: Target, old: Json, body: Json, how: How) -> Json:
        """Put `body` over `old` by the rules of an update. Errors: ApiError 400, 409, 422."""
        body = addressed(target, body)
        check_version(target, old, body, how)
        value = isolated(target, old, self._filled(target, body), how)
        value = counted(target, old, with_fixed_metadata(old, value))
        self._validate(target, value, None if how.trusted else old)
        if value == old:
            return old
        value = managed.updated(old, value, writer(target, how), metadata.stamp())
        return self._stored_or_finished(target, value, how)

    def apply(self, target: Target, body: Json, how: How) -> tuple[Json, bool]:
        """Server-side apply; also whether it created. Errors: ApiError 400, 404, 409, 422."""
        body = addressed(target, body)
        if body["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        who, now = writer(target, how, "Apply"), metadata.stamp()
        old = self.store.get(target.resource, target.place)
        if old is not None:
            value = managed.applied(old, body, who, now, force=how.force)
            return self._replace_applied(target, old, value, how), False
        if target.subresource:
            raise status.not_found(target.resource, target.name)
        value = self._born(target, body, how)
        value = managed.applied(value, body, who, now, force=True)
        return self._stored(target, target.place, value, how), True

    def _replace_applied(self, target: Target, old: Json, value: Json, how: How) -> Json:
        entries = value["metadata"]["managedFields"]
        value = isolated(target, old, self._filled(target, value), how)
        value = counted(target, old, with_fixed_metadata(old, value))
        self._validate(target, value, old)
        if value == old and managed.same(entries, old["metadata"].get("managedFields", [])):
            return old
        value = value | {"metadata": value["metadata"] | {"managedFields": entries}}
        return self._stored_or_finished(target, value, how)

    def delete(self, target: Target, options: Json, how: How) -> tuple[Json, bool]:
        """The object's last state, and whether it is gone. Errors: ApiError 404, 409."""
        old = self.find(target)
        check_preconditions(target, old, options.get("preconditions") or {})
        seconds = grace(target.kind, old, options)
        marked = marked_for_deletion(target.kind, old, seconds)
        if is_finished(marked):
            return (old if how.dry_run else self.remove(target)), True
        meta = old["metadata"]
        if "deletionTimestamp" in meta and seconds >= meta["deletionGracePeriodSeconds"]:
            return old, False
        return self._stored(target, target.place, marked, how), False

    def remove(self, target: Target) -> Json:
        """Take an object out whatever it waits for; returns its last state. Errors: KeyError."""
        if target.resource == NAMESPACE:
            self._terminate(target)
        if target.kind.kind == "CustomResourceDefinition":
            self._withdraw(self.find(target))
        return self.store.remove(target.resource, target.place)

    def _terminate(self, target: Target) -> None:
        """What the namespace controller does, at once."""
        marked = marked_for_deletion(target.kind, self.find(target), 0)
        self.store.put(NAMESPACE, target.place, marked | {"status": {"phase": "Terminating"}})
        for resource in self.store.resources():
            for place in [
                each for each in self.store.everything(resource) if each[0] == target.name
            ]:
                self.store.remove(resource, place)

    def _withdraw(self, crd: Json) -> None:
        resource = GroupResource(crd["spec"]["group"], crd["spec"]["names"]["plural"])
        for place in list(self.store.everything(resource)):
            self.store.remove(resource, place)
        self.kinds.pop(resource, None)
        for told in self.withdrawn:
            told(resource)

    def _filled(self, target: Target, body: Json) -> Json:
        """The body without what a schema does not know, with all defaults."""
        kind = target.kind.kind
        if target.schema is not None:
            return structural.defaulted(target.schema, structural.pruned(target.schema, body))
        if kind == "CustomResourceDefinition" and "names" in body.get("spec", {}):
            now = body["metadata"].get("creationTimestamp") or metadata.stamp()
            return crds.established(body, now)
        return builtin.DEFAULTS[kind](body) if kind in builtin.DEFAULTS else body

    def _validate(self, target: Target, value: Json, old: Json | None) -> None:
        kind, meta = target.kind.kind, value["metadata"]
        causes: list[Cause] = list(metadata.breaches(kind, meta))
        if target.schema is not None:
            causes += validation.breaches(target.schema, value)
        elif kind in builtin.BREACHES:
            causes += builtin.BREACHES[kind](value, old)
        if causes:
            raise status.invalid(target.kind.group_kind, meta.get("name", ""), causes)

    def _namespace_exists(self, target: Target) -> None:
        place = ("", target.namespace)
        if target.kind.namespaced and self.store.get(NAMESPACE, place) is None:
            raise status.not_found(NAMESPACE, target.namespace)

    def _stored(self, target: Target, place: Place, value: Json, how: How) -> Json:
        if how.dry_run:
            return value
        if target.kind.kind == "CustomResourceDefinition":
            kind = crds.kind_of(value)
            self.kinds[kind.resource] = kind
        value = self.store.put(target.resource, place, value)
        if target.resource == NAMESPACE:
            account = self.at(ACCOUNT, place[1], "default")
            if self.store.get(ACCOUNT, account.place) is None:
                self.create(account, {}, SERVER)
        return value

    def _stored_or_finished(self, target: Target, value: Json, how: How) -> Json:
        """Store, or remove what was only waiting for its last finalizer."""
        if is_finished(value) and not how.dry_run:
            return self.remove(target)
        return self._stored(target, target.place, value, how)
