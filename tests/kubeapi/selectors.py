"""Label and field selectors: text to a test of one object, as apimachinery reads them."""

import re
from collections.abc import Callable, Collection
from typing import Any, Final

from tests.kubeapi.status import bad_request

Json = dict[str, Any]
Labels = dict[str, str]
LabelTest = Callable[[Labels], bool]
ObjectTest = Callable[[Json], bool]

KEY: Final = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?)"
VALUE: Final = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
EXISTS: Final = re.compile(rf"\s*(!?)\s*({KEY})\s*")
EQUALS: Final = re.compile(rf"\s*({KEY})\s*(==|=|!=)\s*({VALUE})\s*")
AMONG: Final = re.compile(rf"\s*({KEY})\s+(in|notin)\s*\(([^()]*)\)\s*")


def _split(text: str) -> list[str]:
    """Requirements between commas that stand outside brackets."""
    return re.split(r",(?![^()]*\))", text)


def _requirement(text: str) -> LabelTest:
    if found := AMONG.fullmatch(text):
        key, operator, listed = found.groups()
        values = {each.strip() for each in listed.split(",")}
        if operator == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: key not in labels or labels[key] not in values
    if found := EQUALS.fullmatch(text):
        key, operator, value = found.groups()
        if operator == "!=":
            return lambda labels: key not in labels or labels[key] != value
        return lambda labels: key in labels and labels[key] == value
    if found := EXISTS.fullmatch(text):
        absent, key = found.groups()
        return lambda labels: (key in labels) != bool(absent)
    raise bad_request(f"unable to parse requirement: found '{text.strip()}'")


def label_selector(text: str) -> ObjectTest | None:
    """None: everything matches. Errors: ApiError 400 where the text is no selector."""
    if not text.strip():
        return None
    tests = [_requirement(part) for part in _split(text)]

    def matches(value: Json) -> bool:
        labels = value["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def field_at(value: Json, path: str) -> str:
    """The field as selectors compare it: text, "" where absent, JSON's true and false."""
    found: Any = value
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    if isinstance(found, bool):
        return str(found).lower()
    return "" if found is None else str(found)


def field_selector(
    text: str, fields: Collection[str], unsupported: Callable[[str], str]
) -> ObjectTest | None:
    """A test of the fields that a selector names; None: everything matches.

    Errors: ApiError 400 for a path that is not in `fields`, with the words of `unsupported(path)`.
    """
    wanted: list[tuple[str, bool, str]] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        found = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", part)
        if found is None:
            raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
        label, operator, value = found.groups()
        if label not in fields:
            raise bad_request(unsupported(label))
        wanted.append((label, operator != "!=", value))
    if not wanted:
        return None

    def matches(each: Json) -> bool:
        return all((field_at(each, path) == value) == equal for path, equal, value in wanted)

    return matches
