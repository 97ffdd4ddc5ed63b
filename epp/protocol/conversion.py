"""Converts documents to types; a document of another form is an error in plain English."""

import re
from typing import TypeVar

import msgspec

from epp.errors import ConfigError

T = TypeVar("T")

_LONGEST_ERROR = 300
"""Characters of an error."""
_KINDS = {
    "object": "a mapping",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "`true` or `false`",
}
"""What people call the types of msgspec's errors."""
_QUOTED = {"int", "float", "bool"}
"""What becomes text in quotes."""
_BOUNDS = {">=": "of at least ", "<=": "of at most ", ">": "above ", "<": "below ", "": "of "}
_EXPECTED = re.compile(r"Expected `([a-z |]+)`(?:, got `(\w+)`|( of length)? ([<>]?=? ?)(\d\S*))?")


def convert(document: object, kind: type[T], *, strict: bool = True) -> T:
    """Convert a document to a type. Raises `ConfigError` with the path of the field.

    Not `strict`, text that is a number may stand for it.
    """
    try:
        return msgspec.convert(document, kind, strict=strict)
    except msgspec.ValidationError as error:
        problem, has_place, place = str(error).rpartition(" - at `$")
        if not has_place:
            problem, place = place, ""
        raise ConfigError(
            short(plain(problem)), place.removeprefix(".").removesuffix("`")
        ) from error


def plain(problem: str) -> str:
    """Return what msgspec says about a value in words that need no knowledge of its types."""
    found = _EXPECTED.fullmatch(problem)
    if found is None:  # such as "Object missing required field `type`"
        return problem.removeprefix("Object ").removeprefix("contains ")
    types, got, is_length, sign, bound = found.groups()
    wanted = " or ".join(_KINDS.get(each, each) for each in types.split(" | ") if each != "null")
    if got == "null":
        return f"{wanted} is expected, but the value is empty"
    if got:
        other = "a fraction" if got == "float" else _KINDS.get(got, got)
        hint = "; put it in quotes" if "str" in types.split(" | ") and got in _QUOTED else ""
        return f"{wanted} is expected, not {other}{hint}"
    if bound:
        wanted += f" {_BOUNDS[sign.strip()]}{bound.removesuffix('.0')}"
    if is_length:
        unit = "character" if types == "str" else "item"
        wanted += f" {unit}" if bound == "1" else f" {unit}s"
    return f"{wanted} is expected"


def short(text: str) -> str:
    """Return an error, or its beginning if it is very long."""
    return text if len(text) <= _LONGEST_ERROR else text[:_LONGEST_ERROR] + "..."
