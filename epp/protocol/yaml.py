"""Reads YAML strictly into typed data; every error has its place in the document."""

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import yaml

from epp.errors import ConfigError

T = TypeVar("T")

_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 16
"""Nested lists and mappings; configurations have fewer than ten."""
_PLACE = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<place>.*?)`$", re.DOTALL)


def load_yaml(text: bytes) -> object:
    """Parse one YAML document. Raises `ConfigError` with line and column."""
    try:
        _refuse_depth(text)
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - the safe one, in C where it is built
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"not valid YAML: {problem}", place) from error
    except ValueError as error:
        raise ConfigError(f"not valid YAML: {error}") from error


def _refuse_depth(text: bytes) -> None:
    """Raise for deep nesting: libyaml's composer recurses without limit and crashes."""
    depth = 0
    events: Iterable[Any] = yaml.parse(text, Loader=_LOADER)
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            problem = "nested too deeply"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def convert(document: object, kind: type[T]) -> T:
    """Convert a document to a type. Raises `ConfigError` with the path of the field."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        found = _PLACE.match(str(error))
        problem, place = found.group("problem", "place") if found else (str(error), "")
        raise ConfigError(problem, place) from error
