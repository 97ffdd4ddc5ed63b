"""Strategic merge patch, with the merge keys of the built-in kinds served here.

Mirrors apimachinery `pkg/util/strategicpatch`; the keys are the patchMergeKey tags of the types.
"""

from typing import Any, Final

Json = dict[str, Any]
PORTS: Final = ("containerPort", "port")  # of a container, of a Service
MERGE_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "secrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "ports": PORTS,
    "conditions": ("type",),
    "podIPs": ("ip",),
    "hostIPs": ("ip",),
    "ownerReferences": ("uid",),
    "resourceClaims": ("name",),
}
MERGED_SETS: Final = ("finalizers",)


def _key(field: str, item: Json) -> str:
    keys = MERGE_KEYS[field]
    return next((key for key in keys if key in item), keys[0])


def strategic_merge(value: Any, patch: Json) -> Json:
    """The object with the patch merged in; the directives are consumed."""
    if patch.get("$patch") == "replace":
        return {name: part for name, part in patch.items() if name != "$patch"}
    merged: Json = dict(value) if isinstance(value, dict) else {}
    if "$retainKeys" in patch:
        merged = {name: part for name, part in merged.items() if name in patch["$retainKeys"]}
    for name, part in patch.items():
        if not name.startswith("$"):
            _field(merged, name, part)
        elif name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            merged[field] = [each for each in merged.get(field, []) if each not in part]
    _order(merged, patch)
    return merged


def _field(merged: Json, name: str, part: Any) -> None:
    if part is None or (isinstance(part, dict) and part.get("$patch") == "delete"):
        merged.pop(name, None)
    elif isinstance(part, dict):
        merged[name] = strategic_merge(merged.get(name), part)
    elif isinstance(part, list) and name in MERGED_SETS:
        held = merged.get(name) or []
        merged[name] = held + [each for each in part if each not in held]
    elif isinstance(part, list) and name in MERGE_KEYS:
        merged[name] = _list(name, merged.get(name) or [], part)
    else:
        merged[name] = part


def _list(field: str, held: list[Json], patch: list[Json]) -> list[Json]:
    """Items of a list merged by its key."""
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    result = list(held)
    for item in patch:
        key = _key(field, item)
        at = next((i for i, each in enumerate(result) if each.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(strategic_merge({}, item))
        else:
            result[at] = strategic_merge(result[at], item)
    return result


def _order(merged: Json, patch: Json) -> None:
    """Put lists into the order that $setElementOrder asks for; the others stay behind it."""
    for name, wanted in patch.items():
        if not name.startswith("$setElementOrder/"):
            continue
        field = name.partition("/")[2]
        held = merged.get(field)
        if not isinstance(held, list):
            continue
        if field in MERGED_SETS:
            merged[field] = sorted(held, key=lambda each: _rank(each, wanted))
        elif field in MERGE_KEYS:
            merged[field] = sorted(held, key=lambda each: _item_rank(field, each, wanted))


def _rank(each: Any, wanted: list[Any]) -> int:
    return wanted.index(each) if each in wanted else len(wanted)


def _item_rank(field: str, each: Json, wanted: list[Json]) -> int:
    key = _key(field, each)
    return _rank(each.get(key), [item.get(key) for item in wanted])
