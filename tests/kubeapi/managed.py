"""managedFields: who owns which field, and server-side apply on top of that.

Mirrors sigs.k8s.io/structured-merge-diff in small: fields are owned leaf by leaf, lists whole
unless their name has a merge key. Two things are left out: ownership of an item apart from its
fields, and lists that are sets.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tests.kubeapi.status import ApiError
from tests.kubeapi.strategic import MERGE_KEYS

Json = dict[str, Any]
Path = tuple[str, ...]
Fields = dict[Path, Any]
SYSTEM: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
)


class Writer(msgspec.Struct, frozen=True):
    """Who writes, as an entry of managedFields tells writers apart."""

    manager: str
    operation: str  # Update or Apply
    api_version: str
    subresource: str = ""


def item_key(field: str, item: Any) -> str | None:
    """The path element of an item in a list with a merge key; None where the list is whole."""
    if field not in MERGE_KEYS or not isinstance(item, dict):
        return None
    key = next((each for each in MERGE_KEYS[field] if each in item), None)
    if key is None:
        return None
    named = {key: item[key]} | ({"protocol": item["protocol"]} if "protocol" in item else {})
    return "k:" + json.dumps(named, separators=(",", ":"))


def fields(value: Json) -> Fields:
    """Every owned leaf of an object by its path, without what the server itself keeps."""
    owned = {name: part for name, part in value.items() if name not in ("apiVersion", "kind")}
    metadata = {k: v for k, v in value.get("metadata", {}).items() if k not in SYSTEM}
    return dict(_leaves(owned | {"metadata": metadata}, ()))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _leaves(part, (*path, f"f:{name}"))
        return
    if isinstance(value, list) and value:
        keys = [item_key(path[-1][2:], item) for item in value]
        if all(keys):
            for key, item in zip(keys, value, strict=True):
                yield from _leaves(item, (*path, str(key)))
            return
    if path != ("f:metadata",):
        yield path, value


def _nested(paths: set[Path]) -> Json:
    root: Json = {}
    for path in sorted(paths):
        at = root
        for step in path:
            at = at.setdefault(step, {})
    return root


def _paths(nested: Json, path: Path = ()) -> Iterator[Path]:
    if not nested and path:
        yield path
    for step, part in nested.items():
        yield from _paths(part, (*path, step))


Owners = dict[Writer, tuple[set[Path], str]]  # what each owns, and when it last wrote


def owners(value: Json) -> Owners:
    """Who owns what, read from an object's managedFields."""
    read: Owners = {}
    for entry in value["metadata"].get("managedFields", []):
        writer = Writer(
            entry["manager"], entry["operation"], entry["apiVersion"], entry.get("subresource", "")
        )
        read[writer] = (set(_paths(entry["fieldsV1"])), entry["time"])
    return read


def _entries(held: Owners) -> list[Json]:
    written = []
    for writer, (paths, time) in held.items():
        if not paths:
            continue
        entry = {
            "manager": writer.manager,
            "operation": writer.operation,
            "apiVersion": writer.api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _nested(paths),
        }
        written.append(entry | ({"subresource": writer.subresource} if writer.subresource else {}))
    return written


def _with(value: Json, held: Owners) -> Json:
    return value | {"metadata": value["metadata"] | {"managedFields": _entries(held)}}


def updated(old: Json | None, value: Json, writer: Writer, now: str) -> Json:
    """`value` with managedFields after an ordinary write: what changed is the writer's."""
    before = fields(old) if old is not None else {}
    after = fields(value)
    changed = {path for path, part in after.items() if path not in before or before[path] != part}
    gone = before.keys() - after.keys()
    held = owners(old) if old is not None else {}
    for other, (paths, time) in held.items():
        held[other] = (paths - gone - (changed if other != writer else set()), time)
    if changed:
        held[writer] = (held.get(writer, (set(), now))[0] | changed, now)
    return _with(value, held)


def applied(old: Json, said: Json, writer: Writer, now: str, *, force: bool) -> Json:
    """The object after server-side apply of `said`. Errors: ApiError 409 with every conflict."""
    wanted, live, held = fields(said), fields(old), owners(old)
    clashes = {
        other: {path for path in paths if path in wanted and wanted[path] != live.get(path)}
        for other, (paths, _) in held.items()
        if other != writer
    }
    if any(clashes.values()) and not force:
        raise _conflicts(clashes)
    for other, paths in clashes.items():
        held[other] = (held[other][0] - paths, held[other][1])
    owned = held.pop(writer, (set(), now))[0]
    others = set().union(*(paths for paths, _ in held.values()))
    value = _without(_merged(old, said), owned - wanted.keys() - others)
    held[writer] = (set(wanted), now)
    return _with(value, held)


def _conflicts(clashes: dict[Writer, set[Path]]) -> ApiError:
    causes = []
    for writer, paths in clashes.items():
        said = f'conflict with "{writer.manager}" using {writer.api_version}'
        shown = sorted(_dotted(path) for path in paths)
        causes += [
            {"reason": "FieldManagerConflict", "message": said, "field": field} for field in shown
        ]
    if len(causes) == 1:
        told = f"1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        groups = [
            f'conflicts with "{writer.manager}" using {writer.api_version}:\n'
            + "\n".join(f"- {field}" for field in sorted(_dotted(path) for path in paths))
            for writer, paths in clashes.items()
            if paths
        ]
        told = f"{len(causes)} conflicts: " + "\n".join(groups)
    return ApiError(409, "Conflict", f"Apply failed with {told}", {"causes": causes})


def _dotted(path: Path) -> str:
    steps = (f".{step[2:]}" if step.startswith("f:") else _bracketed(step) for step in path)
    return "".join(steps)


def _bracketed(step: str) -> str:
    said = json.loads(step[2:])
    return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in said.items()) + "]"


def _merged(old: Any, said: Any, field: str = "") -> Any:
    if isinstance(old, dict) and isinstance(said, dict):
        return old | {name: _merged(old.get(name), part, name) for name, part in said.items()}
    if isinstance(old, list) and isinstance(said, list):
        keys = [item_key(field, item) for item in said]
        if said and all(keys):
            items = {item_key(field, item): item for item in old}
            for key, item in zip(keys, said, strict=True):
                items[key] = _merged(items.get(key), item)
            return list(items.values())
    return said


def _without(value: Any, paths: set[Path], field: str = "") -> Any:
    """The value without some leaves, and without what holds nothing after that."""
    below: dict[str, set[Path]] = {}
    for path in paths:
        below.setdefault(path[0], set()).add(path[1:])
    if isinstance(value, dict):
        kept = {k: _cut(v, below.get(f"f:{k}"), k) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not _GONE}
    if isinstance(value, list):
        cut = [_cut(each, below.get(item_key(field, each) or ""), "") for each in value]
        return [each for each in cut if each is not _GONE]
    return value


_GONE: Final = object()


def _cut(value: Any, below: set[Path] | None, field: str) -> Any:
    if below is None:
        return value
    if () in below:
        return _GONE
    rest = _without(value, below, field)
    return rest or _GONE


def same(entries: list[Json], others: list[Json]) -> bool:
    """Whether two lists of managedFields differ in nothing but times."""

    def timeless(each: list[Json]) -> list[Json]:
        return [{k: v for k, v in entry.items() if k != "time"} for entry in each]

    return timeless(entries) == timeless(others)
