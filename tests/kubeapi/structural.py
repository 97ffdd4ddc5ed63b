"""What a CRD's schema makes of a body before it is validated: fields it does not know are
dropped, defaults are filled in. Mirrors apiextensions-apiserver `pkg/apiserver/schema`.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

Json = dict[str, Any]
ALWAYS: Final = ("apiVersion", "kind", "metadata")  # known at the root whatever the schema says
KEEP: Final = "x-kubernetes-preserve-unknown-fields"


def pruned(schema: Json, value: Json) -> Json:
    """The value without unknown fields; apiVersion, kind and metadata stay as they are."""
    kept: Json = _pruned(schema, {k: v for k, v in value.items() if k not in ALWAYS})
    return {name: value[name] for name in ALWAYS if name in value} | kept


def _pruned(schema: Json, value: Any) -> Any:
    if isinstance(value, list):
        return [_pruned(schema.get("items", {KEEP: True}), each) for each in value]
    if not isinstance(value, dict):
        return value
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    kept: Json = {}
    for name, each in value.items():
        part = known.get(name, others)
        if isinstance(part, dict):
            kept[name] = _pruned(part, each)
        elif part or schema.get(KEEP):
            kept[name] = each
    return kept


def unknown(schema: Json, value: Json) -> list[str]:
    """Paths of the fields that pruning drops, as strict decoding names them."""
    body = {name: each for name, each in value.items() if name not in ALWAYS}
    return list(_dropped(body, _pruned(schema, body), ""))


def _dropped(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, list):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _dropped(one, other, f"{path}[{index}]")
    if isinstance(before, dict):
        for name, each in before.items():
            place = f"{path}.{name}" if path else name
            if name not in after:
                yield place
            else:
                yield from _dropped(each, after[name], place)


def defaulted(schema: Json, value: Json) -> Json:
    """A copy with the defaults of every object that is there.

    Null, where it is not allowed, falls to the default, and is dropped where there is none.
    """
    root = {name: part for name, part in schema.get("properties", {}).items() if name not in ALWAYS}
    filled: Json = _defaulted(schema | {"properties": root}, value)
    return filled


def _defaulted(schema: Json, value: Any) -> Any:
    if isinstance(value, list):
        return [_defaulted(schema.get("items", {}), each) for each in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, part in known.items():
        absent = name not in filled or (filled[name] is None and not part.get("nullable"))
        if absent and "default" in part:
            filled[name] = deepcopy(part["default"])
        elif absent:
            filled.pop(name, None)
    for name, each in filled.items():
        part = known.get(name, others)
        if isinstance(part, dict):
            filled[name] = _defaulted(part, each)
    return filled
