"""Label and field selectors: text to a test of one object, as apimachinery reads it.

Field selectors are by equality; labels may be compared by sets too (`in`, `notin`, a bare key).
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from tests.kubeapi.status import bad_request

Json = dict[str, Any]
ObjectTest = Callable[[Json], bool]
REQUIREMENT: Final = re.compile(r"([\w./-]+)(==|=|!=)([\w.-]*)")


def _requirements(text: str) -> list[tuple[str, bool, str]]:
    """Key, whether the value must be equal, and the value. Errors: ApiError 400."""
    read = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        found = REQUIREMENT.fullmatch(part)
        if found is None:
            raise bad_request(f"unable to parse requirement: found '{part}'")
        key, operator, value = found.groups()
        read.append((key, operator != "!=", value))
    return read


SET_BASED: Final = re.compile(r"([\w./-]+)\s+(in|notin)\s+\(([\w., -]*)\)|(!?)\s*([\w./-]+)")
LabelTest = Callable[[Mapping[str, str]], bool]


def label_selector(text: str) -> ObjectTest:
    """A test of an object's labels; an empty text matches all. Errors: ApiError 400."""
    parts = re.split(r",(?![^()]*\))", text)
    tests = [_label_test(part) for part in map(str.strip, parts) if part]

    def matches(value: Json) -> bool:
        labels = value["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _label_test(part: str) -> LabelTest:
    found = SET_BASED.fullmatch(part)
    if found is None:
        ((key, equal, wanted),) = _requirements(part)
        return lambda labels: (labels.get(key) == wanted) == equal
    key, operator, values, absent, name = found.groups()
    if name:
        return lambda labels: (name in labels) != bool(absent)
    among = {value.strip() for value in values.split(",")}
    return lambda labels: (labels.get(key) in among) == (operator == "in")


def _field_at(value: Json, path: str) -> str:
    """The field as selectors compare it: "" where it is absent."""
    found: Any = value
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return "" if found is None else str(found)


def field_selector(
    text: str, fields: Collection[str], unsupported: Callable[[str], str]
) -> ObjectTest:
    """A test of the fields that a selector names; an empty text matches all.

    Errors: ApiError 400 for a path that is not in `fields`, with the words of `unsupported(path)`.
    """
    wanted = _requirements(text)
    for path, _, _ in wanted:
        if path not in fields:
            raise bad_request(unsupported(path))

    def matches(each: Json) -> bool:
        return all((_field_at(each, path) == value) == equal for path, equal, value in wanted)

    return matches
