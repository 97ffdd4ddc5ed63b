"""What a write is about and how it is meant, and the steps of it that need no store."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from tests.kubeapi import builtin, metadata, status
from tests.kubeapi.kinds import Kind, Version
from tests.kubeapi.managed import Writer
from tests.kubeapi.status import Cause, GroupResource, bad_request
from tests.kubeapi.store import Place

Json = dict[str, Any]
KEPT: Final = ("uid", "creationTimestamp", "generation", "deletionTimestamp")
KEPT_TOO: Final = ("deletionGracePeriodSeconds", "managedFields")
DONE: Final = ("Succeeded", "Failed")


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
    def resource(self) -> GroupResource:
        return self.kind.resource

    @property
    def api_version(self) -> str:
        return self.kind.api_version(self.version)

    @property
    def described(self) -> Version:
        return next(each for each in self.kind.versions if each.name == self.version)

    @property
    def schema(self) -> Json | None:
        return self.described.schema


class How(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a write. `trusted` writes spec and status at once and is not held to what an
    update may not change: it stands for the scheduler, the kubelet and the controllers.
    """

    manager: str = "unknown"
    dry_run: bool = False
    force: bool = False
    trusted: bool = False


def writer(target: Target, how: How, operation: str = "Update") -> Writer:
    return Writer(how.manager, operation, target.api_version, target.subresource)


def without(value: Json, names: Iterable[str]) -> Json:
    return {name: part for name, part in value.items() if name not in names}


def content(value: Json) -> Json:
    """What metadata.generation counts changes of."""
    return without(value, ("apiVersion", "kind", "metadata", "status"))


def addressed(target: Target, body: Json) -> Json:
    """A copy of the body whose kind, name and namespace are those of the URL.

    Errors: ApiError 400 where they contradict it.
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
    builtin.decode(target.kind, body)
    head = {"kind": target.kind.kind, "apiVersion": target.kind.api_version(target.kind.stored_as)}
    return head | {"metadata": meta} | without(body, ("kind", "apiVersion", "metadata"))


def _check_kind(target: Target, body: Json) -> None:
    kind, version = body.get("kind", ""), body.get("apiVersion", "")
    wanted = target.kind.kind
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


def check_version(target: Target, old: Json, body: Json, how: How) -> None:
    """Optimistic concurrency. Errors: ApiError 409, and 422 where a version must be named."""
    said, held = body["metadata"].get("resourceVersion"), old["metadata"]["resourceVersion"]
    uid, old_uid = body["metadata"].get("uid"), old["metadata"]["uid"]
    if uid and uid != old_uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}"
        raise status.conflict(target.resource, target.name, _storage_error(target, why))
    if said and said != held:
        raise status.modified(target.resource, target.name)
    if not said and not target.kind.unconditional and not how.trusted:
        message = "Invalid value: 0x0: must be specified for an update"
        cause = Cause("FieldValueInvalid", message, "metadata.resourceVersion")
        raise status.invalid(target.resource, target.name, [cause])


def _storage_error(target: Target, why: str) -> str:
    """What the storage says of a precondition that does not hold."""
    parts = [target.kind.group] if target.kind.custom else []
    parts += [target.kind.plural, *(part for part in target.place if part)]
    return (
        f"StorageError: invalid object, Code: 4, Key: /registry/{'/'.join(parts)},"
        f" ResourceVersion: 0, AdditionalErrorMsg: {why}"
    )


def check_preconditions(target: Target, old: Json, said: Json) -> None:
    """Those of a DELETE. Errors: ApiError 409."""
    meta = old["metadata"]
    if said.get("uid", meta["uid"]) != meta["uid"]:
        why = (
            f"the UID in the precondition ({said['uid']}) does not match the UID in record"
            f" ({meta['uid']}). The object might have been deleted and then recreated"
        )
        raise status.conflict(target.resource, target.name, why)
    if said.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({said['resourceVersion']}) does not match"
            f" the ResourceVersion in record ({meta['resourceVersion']}). The object might have"
            " been modified"
        )
        raise status.conflict(target.resource, target.name, why)


def first_status(target: Target, value: Json, how: How) -> Json:
    """A created object: what it says of its status does not count where that is a subresource."""
    if not target.described.status or target.kind.kind == "CustomResourceDefinition":
        return value
    said = value.get("status") or {} if how.trusted else {}
    given = builtin.FIRST_STATUS.get(target.kind.kind, {}) | said
    return without(value, ["status"]) | ({"status": given} if given else {})


def isolated(target: Target, old: Json, value: Json, how: How) -> Json:
    """Main resource and status each keep their hands off the other."""
    if how.trusted:
        return ({"status": old["status"]} if "status" in old else {}) | value
    if not target.described.status or target.kind.kind == "CustomResourceDefinition":
        return value
    status_of = value if target.subresource == "status" else old
    rest = old if target.subresource == "status" else value
    kept = without(rest, ["status"])
    if target.subresource == "status" and not target.kind.custom:
        kept = kept | {"metadata": old["metadata"] | _told(value["metadata"])}
    return kept | ({"status": status_of["status"]} if "status" in status_of else {})


def _told(meta: Json) -> Json:
    return {name: meta[name] for name in ("labels", "annotations") if name in meta}


def with_fixed_metadata(old: Json, value: Json) -> Json:
    """What no writer changes of metadata is as it was."""
    before = old["metadata"]
    fixed = {name: before[name] for name in (*KEPT, *KEPT_TOO) if name in before}
    meta = without(value["metadata"], (*KEPT, *KEPT_TOO)) | fixed
    return value | {"metadata": meta | {"resourceVersion": before["resourceVersion"]}}


def counted(target: Target, old: Json, value: Json) -> Json:
    """The value with the next generation where its content changed."""
    if not target.kind.generation or content(value) == content(old):
        return value
    generation = old["metadata"].get("generation", 0) + 1
    return value | {"metadata": value["metadata"] | {"generation": generation}}


def grace(kind: Kind, old: Json, options: Json) -> int:
    """Seconds that a DELETE waits: only for a Pod that may be running somewhere."""
    if kind.kind != "Pod" or not old["spec"].get("nodeName"):
        return 0
    if old.get("status", {}).get("phase") in DONE:
        return 0
    said = options.get("gracePeriodSeconds")
    return int(old["spec"]["terminationGracePeriodSeconds"] if said is None else said)


def marked_for_deletion(kind: Kind, old: Json, seconds: int) -> Json:
    """The object as it waits for its finalizers or for the end of its grace period."""
    when = metadata.stamp(datetime.now(UTC) + timedelta(seconds=seconds))
    marks: Json = {"deletionTimestamp": when, "deletionGracePeriodSeconds": seconds}
    if kind.generation:
        marks["generation"] = old["metadata"].get("generation", 0) + 1
    return old | {"metadata": old["metadata"] | marks}


def is_finished(value: Json) -> bool:
    """Whether an object that is being deleted has nothing left to wait for."""
    meta = value["metadata"]
    waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    return "deletionTimestamp" in meta and not waits
