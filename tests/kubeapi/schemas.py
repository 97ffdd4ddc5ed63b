"""The schema of a custom resource applied to a body: pruning, defaults, validation.

Pruning and defaults mirror apiextensions-apiserver `pkg/apiserver/schema`. Validation is JSON
Schema's: the field and the code of a refusal are the API server's, the words are not. Rules in CEL
(`x-kubernetes-validations`) are not evaluated.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

from jsonschema import Draft202012Validator

from tests.kubeapi.status import Cause

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


def defaulted(schema: Json, value: Json) -> Json:
    """A copy with the defaults of every object that is present.

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


def breaches(schema: Json, value: Json) -> Iterator[Cause]:
    """Every breach of the schema, with the path of its field."""
    body = {name: part for name, part in value.items() if name not in ALWAYS}
    for error in Draft202012Validator(schema).iter_errors(body | {"metadata": {}}):
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.path)
        field = "".join(steps).lstrip(".")
        if error.validator == "required":
            missing = next(each for each in error.validator_value if each not in error.instance)
            yield Cause("FieldValueRequired", "Required value", f"{field}.{missing}".lstrip("."))
        else:
            yield Cause("FieldValueInvalid", f"Invalid value: {error.message}", field)
