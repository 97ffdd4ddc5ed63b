"""What a write does to stored objects, by the same rules for every kind.

Mirrors `registry/generic/registry/store.go` and the `rest` package of the API server. Reads no
request and writes no response; `listing.py` and `watch.py` read what is stored here.
"""

import uuid
from collections.abc import Callable
from typing import Any, Final

from tests.kubeapi import schemas, status
from tests.kubeapi.kinds import BUILT_IN, Kind, kind_of
from tests.kubeapi.status import ApiError, Cause, GroupResource
from tests.kubeapi.store import Place, Store
from tests.kubeapi.writes import (
    Target,
    addressed,
    check_version,
    first_status,
    isolated,
    lease_breaches,
    stamp,
    without,
)

Json = dict[str, Any]
NAMESPACE: Final = GroupResource("", "namespaces")
CRD: Final = "CustomResourceDefinition"


class Registry:
    """The kinds that are served and the rules by which their objects change.

    `withdrawn` are called with each resource whose definition is deleted. `trusted` writes stand
    for the scheduler, the kubelet and the controllers: they write spec and status at once.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.kinds: dict[GroupResource, Kind] = {kind.resource: kind for kind in BUILT_IN}
        self.withdrawn: list[Callable[[GroupResource], None]] = []
        for name in ("default", "kube-system"):
            self.create(self.at(NAMESPACE), {"metadata": {"name": name}}, trusted=True)

    def at(self, resource: GroupResource, namespace: str = "", name: str = "") -> Target:
        """A target in the version in which its objects are kept. Errors: KeyError."""
        kind = self.kinds[resource]
        return Target(kind=kind, version=kind.storage, namespace=namespace, name=name)

    def find(self, target: Target) -> Json:
        """The object at a target. Errors: ApiError 404."""
        found = self.store.get(target.kind.resource, target.place)
        if found is None:
            raise status.not_found(target.kind.resource, target.name)
        return found

    def create(self, target: Target, body: Json, *, trusted: bool = False) -> Json:
        """Errors: ApiError 400, 404 for the namespace, 409 for the name, 422, 500."""
        body = addressed(target, body)
        meta = body["metadata"]
        if meta.get("resourceVersion"):
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        if target.kind.namespaced and not self.store.get(NAMESPACE, ("", target.namespace)):
            raise status.not_found(NAMESPACE, target.namespace)
        value = first_status(target, body, trusted=trusted)
        born = {"uid": str(uuid.uuid4()), "creationTimestamp": stamp()}
        given = meta if trusted else {}
        born = {name: given.get(name, part) for name, part in born.items()}
        value = self._checked(target, value | {"metadata": meta | born})
        place = (target.namespace, meta["name"])
        if self.store.get(target.kind.resource, place) is not None:
            raise status.already_exists(target.kind.resource, meta["name"])
        return self._stored(target, place, value)

    def update(self, target: Target, body: Json) -> tuple[Json, bool]:
        """PUT; also whether it created. Errors: ApiError 400, 404, 409, 422."""
        old = self.store.get(target.kind.resource, target.place)
        if old is None and target.kind.upsert and not target.subresource:
            return self.create(target, body), True
        return self.replace(target, self.find(target), body), False

    def replace(self, target: Target, old: Json, body: Json, *, trusted: bool = False) -> Json:
        """Put `body` over `old` by the rules of an update. Errors: ApiError 400, 409, 422."""
        body = addressed(target, body)
        if not trusted:
            check_version(target, old, body)
            body = isolated(target, old, body)
        elif "status" in old:
            body = {"status": old["status"]} | body
        kept = ("uid", "creationTimestamp", "resourceVersion")
        fixed = {name: old["metadata"][name] for name in kept}
        meta = without(body["metadata"], kept) | fixed
        value = self._checked(target, body | {"metadata": meta})
        # A write that changes nothing is not a write: the version stays and watches hear nothing.
        return old if value == old else self._stored(target, target.place, value)

    def remove(self, target: Target) -> Json:
        """Take an object out at once; returns its last state. Errors: ApiError 404."""
        old = self.find(target)
        if target.kind.resource == NAMESPACE:
            for resource in self.store.resources():
                self._remove_all(resource, target.name)
        if target.kind.kind == CRD:
            resource = GroupResource(old["spec"]["group"], old["spec"]["names"]["plural"])
            self._remove_all(resource, None)
            self.kinds.pop(resource, None)
            for told in self.withdrawn:
                told(resource)
        return self.store.remove(target.kind.resource, target.place)

    def _remove_all(self, resource: GroupResource, namespace: str | None) -> None:
        for place in list(self.store.everything(resource)):
            if namespace in (None, place[0]):
                self.store.remove(resource, place)

    def _checked(self, target: Target, value: Json) -> Json:
        """The value with the defaults of its schema, valid. Errors: ApiError 422."""
        schema, causes = target.described.schema, list[Cause]()
        if not value["metadata"].get("name"):
            said = "Required value: name or generateName is required"
            causes.append(Cause("FieldValueRequired", said, "metadata.name"))
        if schema is not None:
            value = schemas.defaulted(schema, schemas.pruned(schema, value))
            causes += schemas.breaches(schema, value)
        elif target.kind.kind == "Lease":
            causes += lease_breaches(value)
        elif target.kind.kind == "Pod" and not value.get("spec", {}).get("containers"):
            causes.append(Cause("FieldValueRequired", "Required value", "spec.containers"))
        if causes:
            raise status.invalid(target.kind.group_kind, value["metadata"].get("name", ""), causes)
        return value

    def _stored(self, target: Target, place: Place, value: Json) -> Json:
        if target.kind.kind == CRD:
            kind = kind_of(value)
            self.kinds[kind.resource] = kind
        return self.store.put(target.kind.resource, place, value)
