"""Converts documents to types; a document of another form is an error in plain English."""

import re
from ast import literal_eval
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Literal, TypeVar, get_args, get_origin

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
_LONGEST_WORD = 64
"""Characters of a value that is repeated in an error."""
_NOT_LISTED = "Invalid enum value "
"""What msgspec says before a value as Python writes it."""
_AT, _OF_A_KEY = " - at `$", " - at `key` in `$"
"""What msgspec says before the place of a problem, and of one of the key of a mapping."""
_NAME, _ITEM = re.compile(r"\w++"), re.compile(r"\[[^][]*+\]")
"""In the place of a problem: the name of a field, and the number or key of an item."""
_EXPECTED = re.compile(r"Expected `([a-z |]+)`(?:, got `(\w+)`|( of length)? ([<>]?=? ?)(\d\S*))?")


def convert(document: object, kind: type[T], *, strict: bool = True) -> T:
    """Convert a document to a type. Raises `ConfigError` with the path of the field.

    Not `strict`, text that is a number may stand for it.
    """
    try:
        return msgspec.convert(document, kind, strict=strict)
    except msgspec.ValidationError as error:
        said = str(error).replace(_OF_A_KEY, _AT)
        problem, has_place, place = said.rpartition(_AT)
        if not has_place:
            problem, place = place, ""
        place = place.removeprefix(".").removesuffix("`")
        said = _not_listed(problem, kind, place) or _plain(problem)
        if said.startswith("unknown field"):
            said += f"; it takes {', '.join(fields_at(kind, place)) or 'none'}"
        raise ConfigError(short(said), place) from error


def structs_in(types: Iterable[object]) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs within annotations."""
    for each in types:
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            yield each
        yield from structs_in(get_args(each))


def types_at(kind: object, place: str) -> tuple[object, ...]:
    """Return the annotations of a field, by its place in a document: `parts[0].tiers`."""
    types: tuple[object, ...] = (kind,)
    for name in _NAME.findall(_ITEM.sub("", place)):
        types = tuple(
            field.type
            for struct in structs_in(types)
            for field in msgspec.structs.fields(struct)
            if field.encode_name == name
        )
    return types


def fields_at(kind: type, place: str) -> list[str]:
    """Return the names of the fields that the struct at a place of a document has."""
    struct = next(structs_in(types_at(kind, place)), kind)
    return [field.encode_name for field in msgspec.structs.fields(struct)]


def _not_listed(problem: str, kind: object, place: str) -> str:
    """Return which values a field takes, if the problem is that its value is none of them."""
    if not problem.startswith(_NOT_LISTED):
        return ""
    try:
        given = short(str(literal_eval(problem.removeprefix(_NOT_LISTED))), _LONGEST_WORD)
    except (ValueError, SyntaxError):  # it has what looks like a place
        return ""
    listed = ", ".join(str(value) for value in _values_in(types_at(kind, place)) if value != "")
    return f"`{given}` is not one of {listed}"


def _values_in(types: Iterable[object]) -> Iterator[object]:
    """Yield the values that annotations list."""
    for each in types:
        if get_origin(each) is Literal:
            yield from get_args(each)
        elif isinstance(each, type) and issubclass(each, Enum):
            yield from (member.value for member in each)
        else:
            yield from _values_in(get_args(each))


def _plain(problem: str) -> str:
    """Return msgspec's message about a value in words that need no knowledge of its types."""
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


def short(text: str, most: int = _LONGEST_ERROR) -> str:
    """Return an error, or its beginning if it is very long."""
    return text if len(text) <= most else text[:most] + "..."
