"""Label and field selectors by equality: text to a test of one object, as apimachinery reads it.

Set-based requirements (`in`, `notin`, a bare key) are refused: nothing here asks with one.
"""

import re
from collections.abc import Callable, Collection
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


def label_selector(text: str) -> ObjectTest:
    """A test of an object's labels; an empty text matches all. Errors: ApiError 400."""
    wanted = _requirements(text)

    def matches(value: Json) -> bool:
        labels = value["metadata"].get("labels") or {}
        return all((labels.get(key) == text) == equal for key, equal, text in wanted)

    return matches


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
