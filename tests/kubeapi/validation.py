"""A CRD's structural schema against one value: every breach, in the API server's words."""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

from tests.kubeapi.cel import RULES, breaks
from tests.kubeapi.status import Cause

Json = dict[str, Any]
UNCHECKED: Final = (
    "some validation rules were not checked because the object was invalid; correct the existing"
    " errors to complete validation"
)
TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
WORDS: Final = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}
RANGES: Final = {"int32": 2**31, "int64": 2**63}


def _word(value: Any) -> str:
    return WORDS.get(type(value), "number")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{_word(value)}"' if isinstance(value, dict | list) else str(value)


def _invalid(path: str, value: Any, why: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {_shown(value)}: {path} in body {why}", path)


def _wrong_type(path: str, value: Any, wanted: str) -> Cause:
    is_ = _word(value)
    message = f'Invalid value: "{is_}": {path} in body must be of type {wanted}: "{is_}"'
    return Cause("FieldValueTypeInvalid", message, path)


def _required(path: str) -> Cause:
    return Cause("FieldValueRequired", "Required value", path)


def _text(schema: Json, value: str, path: str) -> Iterator[Cause]:
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        most = schema["maxLength"]
        message = f"Too long: may not be more than {most} bytes"
        yield Cause("FieldValueTooLong", message, path)
    if len(value) < schema.get("minLength", 0):
        yield _invalid(path, value, f"should be at least {schema['minLength']} chars long")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield _invalid(path, value, f"should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _is_time(value):
        yield _invalid(path, value, f'must be of type date-time: "{value}"')


def _is_time(value: str) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _number(schema: Json, value: float, path: str) -> Iterator[Cause]:
    if value > schema.get("maximum", value):
        yield _invalid(path, value, f"should be less than or equal to {schema['maximum']}")
    if value < schema.get("minimum", value):
        yield _invalid(path, value, f"should be greater than or equal to {schema['minimum']}")
    bound = RANGES.get(schema.get("format", ""))
    if bound is not None and not -bound <= value < bound:
        yield _invalid(path, value, f"must be of type {schema['format']}")


def _array(schema: Json, value: list[Any], path: str) -> Iterator[Cause]:
    if len(value) > schema.get("maxItems", len(value)):
        message = f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
        yield Cause("FieldValueTooMany", message, path)
    if len(value) < schema.get("minItems", 0):
        yield _invalid(path, len(value), f"should have at least {schema['minItems']} items")
    yield from _twins(schema, value, path)
    for index, item in enumerate(value):
        yield from structure(schema["items"], item, f"{path}[{index}]")


def _twins(schema: Json, value: list[Any], path: str) -> Iterator[Cause]:
    """Items that say the same where the list is a set or a map."""
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys", [])
    if kind not in ("set", "map"):
        return
    seen: list[Any] = []
    for index, item in enumerate(value):
        said = item if kind == "set" else {key: item.get(key) for key in keys}
        if said in seen:
            yield Cause(
                "FieldValueDuplicate", f"Duplicate value: {_shown(said)}", f"{path}[{index}]"
            )
        seen.append(said)


def _object(schema: Json, value: Json, path: str) -> Iterator[Cause]:
    for name in schema.get("required", []):
        if name not in value:
            yield _required(f"{path}.{name}".lstrip("."))
    if len(value) > schema.get("maxProperties", len(value)):
        message = f"Too many: {len(value)}: must have at most {schema['maxProperties']} items"
        yield Cause("FieldValueTooMany", message, path)
    if len(value) < schema.get("minProperties", 0):
        why = f"should have at least {schema['minProperties']} properties"
        yield _invalid(path, len(value), why)
    others = schema.get("additionalProperties")
    for name, item in value.items():
        part = schema.get("properties", {}).get(name, others)
        if isinstance(part, dict):
            yield from structure(part, item, f"{path}.{name}".lstrip("."))


PARTS: Final[dict[type, Callable[..., Iterator[Cause]]]] = {
    str: _text,
    int: _number,
    float: _number,
    list: _array,
    dict: _object,
}


def structure(schema: Json, value: Any, path: str = "") -> Iterator[Cause]:
    """Everything but the rules in CEL. `path` is "" for the whole object."""
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield _wrong_type(path, value, "integer,string")
        return
    wanted = schema.get("type", "")
    if wanted in TYPES and not TYPES[wanted](value):
        yield _wrong_type(path, value, wanted)
        return
    if "enum" in schema and value not in schema["enum"]:
        offered = ", ".join(_shown(each) for each in schema["enum"])
        message = f"Unsupported value: {_shown(value)}: supported values: {offered}"
        yield Cause("FieldValueNotSupported", message, path)
    if type(value) in PARTS:
        yield from PARTS[type(value)](schema, value, path)


def rules(schema: Json, value: Any, path: str = "") -> Iterator[Cause]:
    """The breaches of x-kubernetes-validations, from the root down."""
    for rule in schema.get("x-kubernetes-validations", []):
        if breaks(rule["rule"], value):
            told = rule.get("message", f"failed rule: {rule['rule']}")
            message = f'Invalid value: "{_word(value)}": {told}'
            yield Cause("FieldValueInvalid", message, path)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from rules(schema.get("items", {}), item, f"{path}[{index}]")
    elif isinstance(value, dict):
        others = schema.get("additionalProperties")
        for name, item in value.items():
            part = schema.get("properties", {}).get(name, others)
            if isinstance(part, dict):
                yield from rules(part, item, f"{path}.{name}".lstrip("."))


def breaches(schema: Json, value: Json) -> list[Cause]:
    """All of them; where the structure is broken the rules are not evaluated, and it is said."""
    found = list(structure(schema, value))
    if not found:
        return list(rules(schema, value))
    if has_rules(schema):
        message = f'Invalid value: "null": {UNCHECKED}'
        found.append(Cause("FieldValueInvalid", message, "<nil>"))
    return found


def has_rules(schema: Json) -> bool:
    """Whether any rule in CEL stands anywhere in a schema. Errors: ValueError, a rule unknown."""
    found = list(_every_rule(schema))
    unknown = [rule for rule in found if rule not in RULES]
    if unknown:
        raise ValueError(f"tests/kubeapi/cel.py does not know the rule {unknown[0]!r}")
    return bool(found)


def _every_rule(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _every_rule(each)
    if isinstance(schema, dict):
        for rule in schema.get("x-kubernetes-validations", []):
            yield rule["rule"]
        for each in schema.values():
            yield from _every_rule(each)
