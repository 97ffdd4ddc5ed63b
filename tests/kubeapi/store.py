"""Objects under one revision counter, as etcd and the watch cache keep them together.

Objects are never changed in place: every write stores another dict, so what a reader or a watch was
given stays as it was. Knows nothing of HTTP, of kinds or of what a valid object is.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from typing import Any, Final

import msgspec

from tests.kubeapi.status import GroupResource

Json = dict[str, Any]
Place = tuple[str, str]  # namespace ("" at cluster scope) and name
FIRST_REVISION: Final = 100
MAX_HISTORY: Final = 100_000  # changes remembered per resource, as the watch cache's upper bound


class Change(msgspec.Struct, eq=False):
    """One write: the object before and after it (None: there was or is none).

    `encoded` keeps what watches sent of it, by whatever they tell encodings apart.
    """

    revision: int
    resource: GroupResource
    place: Place
    before: Json | None
    after: Json | None
    encoded: dict[Any, bytes] = {}


class Compacted(Exception):
    """The revision asked for lies before the last compaction."""

    def __init__(self, floor: int) -> None:
        super().__init__(f"compacted up to {floor}")
        self.floor = floor


class Store:
    """Everything the API server knows. `revision` is that of the latest write."""

    def __init__(self) -> None:
        self.revision = FIRST_REVISION
        self.floor = FIRST_REVISION
        self._objects: dict[GroupResource, dict[Place, Json]] = {}
        self._log: dict[GroupResource, deque[Change]] = {}
        self._listeners: dict[GroupResource, list[Callable[[Change], None]]] = {}

    def get(self, resource: GroupResource, place: Place) -> Json | None:
        return self._objects.get(resource, {}).get(place)

    def everything(self, resource: GroupResource) -> dict[Place, Json]:
        """All objects of a resource, by place; not to be changed."""
        return self._objects.get(resource, {})

    def resources(self) -> list[GroupResource]:
        return [resource for resource, objects in self._objects.items() if objects]

    def put(self, resource: GroupResource, place: Place, value: Json) -> Json:
        """Store `value` under the next revision, written into its resourceVersion."""
        revision = self.revision + 1
        after = value | {"metadata": value["metadata"] | {"resourceVersion": str(revision)}}
        objects = self._objects.setdefault(resource, {})
        before = objects.get(place)
        objects[place] = after
        self._changed(Change(revision, resource, place, before, after))
        return after

    def remove(self, resource: GroupResource, place: Place) -> Json:
        """Take an object out; returns its last state, under the revision of its removal."""
        revision = self.revision + 1
        before = self._objects[resource].pop(place)
        self._changed(Change(revision, resource, place, before, None))
        return at_revision(before, revision)

    def _changed(self, change: Change) -> None:
        self.revision = change.revision
        log = self._log.setdefault(change.resource, deque())
        log.append(change)
        if len(log) > MAX_HISTORY:
            self.compact(log.popleft().revision)
        for listener in tuple(self._listeners.get(change.resource, ())):
            listener(change)

    def compact(self, revision: int | None = None) -> None:
        """Forget history up to `revision` (default: all of it); later reads of it are Compacted."""
        self.floor = self.revision if revision is None else max(self.floor, revision)
        for log in self._log.values():
            while log and log[0].revision <= self.floor:
                log.popleft()

    def since(self, resource: GroupResource, revision: int) -> list[Change]:
        """The changes of a resource after `revision`, oldest first. Errors: Compacted."""
        if revision < self.floor:
            raise Compacted(self.floor)
        log = self._log.get(resource, deque())
        first = bisect_right(log, revision, key=attrgetter("revision"))
        return list(islice(log, first, None))

    def snapshot(self, resource: GroupResource, revision: int) -> dict[Place, Json]:
        """All objects of a resource as they were at `revision`. Errors: Compacted."""
        objects = dict(self.everything(resource))
        for change in reversed(self.since(resource, revision)):
            if change.before is None:
                del objects[change.place]
            else:
                objects[change.place] = change.before
        return objects

    def listen(self, resource: GroupResource, listener: Callable[[Change], None]) -> None:
        self._listeners.setdefault(resource, []).append(listener)

    def unlisten(self, resource: GroupResource, listener: Callable[[Change], None]) -> None:
        self._listeners[resource].remove(listener)


def at_revision(value: Json, revision: int) -> Json:
    """The same object under another resourceVersion."""
    return value | {"metadata": value["metadata"] | {"resourceVersion": str(revision)}}
