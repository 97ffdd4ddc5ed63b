"""Reads plain YAML strictly; every error has its place in the document.

Plain: one document of lists, mappings with different keys of text, and scalars. Only an empty
document, such as after a last `---`, may follow. Tags, anchors, aliases and merge keys are refused:
they let a few bytes stand for gigabytes, or for a type that their reader does not expect. Dates are
text.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import yaml

from epp.errors import ConfigError
from epp.protocol.conversion import short
from epp.protocol.steps import finish

_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 16
"""Nested lists and mappings; configurations have fewer than ten."""
_STEP_EVENTS = 256
"""Events of the parser between two pauses, which take about a millisecond."""
_LONGEST_NUMBER = 64
"""Characters of a scalar that may be a number."""
_CANNOT_START = "found character that cannot start any token"
"""What libyaml says of a tab, among others."""

_NO_KEY = object()


def load_yaml(text: bytes) -> object:
    """Parse one plain YAML document. Raises `ConfigError` with line and column."""
    return finish(yaml_steps(text))


def yaml_steps(text: bytes) -> Generator[None, None, object]:
    """Parse as `load_yaml` does, with a pause about each millisecond."""
    try:
        return (yield from _document(yaml.parse(text, Loader=_LOADER)))
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        mark = getattr(error, "problem_mark", None)
        if mark and problem == _CANNOT_START and _character(text, mark.index) == "\t":
            problem = "a tab cannot indent a line; write spaces"
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"not valid YAML: {short(problem)}", place) from error
    except ValueError as error:
        raise ConfigError(f"not valid YAML: {short(str(error))}") from error


def _character(text: bytes, index: int) -> str:
    """Return the character at an index, as libyaml counts them: without a mark of byte order."""
    return text.decode("utf-8-sig", errors="replace")[index : index + 1]


def _document(events: Iterable[Any]) -> Generator[None, None, object]:
    """Build the document from the parser's events.

    libyaml's own composer recurses without limit and builds all of a document in one go.
    """
    root: list[object] = []
    containers: list[Any] = [root]
    keys: list[object] = [_NO_KEY]
    for number, event in enumerate(events):
        if number % _STEP_EVENTS == 0:
            yield
        if isinstance(event, yaml.CollectionEndEvent):
            containers.pop()
            keys.pop()
        elif isinstance(event, yaml.NodeEvent):
            value = _value(event)
            if root and len(containers) == 1:
                _check_empty(value, event)
                continue
            _add(containers[-1], keys, value, event)
            if isinstance(event, yaml.CollectionStartEvent):
                containers.append(value)
                keys.append(_NO_KEY)
        if len(containers) > _MAX_DEPTH + 1:
            raise _refusal("nested too deeply", event)
    return root[0] if root else None


def _check_empty(value: object, event: yaml.NodeEvent) -> None:
    if value is not None:
        raise _refusal("a second document is not allowed", event)


def _add(container: Any, keys: list[object], value: object, event: yaml.NodeEvent) -> None:  # noqa: ANN401 (a list or a dict)
    """Add a value to the container that is open, or set the key for the next one."""
    if isinstance(container, list):
        container.append(value)
    elif keys[-1] is not _NO_KEY:
        container[keys[-1]] = value
        keys[-1] = _NO_KEY
    elif not isinstance(value, str):
        raise _refusal("a key is not text; quote it", event)
    elif value in container:
        raise _refusal(f"the key `{short(value)}` repeats", event)
    else:
        keys[-1] = value


def _value(event: yaml.NodeEvent) -> object:
    """Return the scalar of an event, or an empty container. Raises if it is not plain."""
    if not isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
        raise _refusal("aliases are not allowed; write the value out", event)
    if event.anchor is not None:
        raise _refusal("anchors are not allowed", event)
    if event.tag is not None:
        raise _refusal(f"tags are not allowed, such as `{short(event.tag)}`", event)
    if isinstance(event, yaml.SequenceStartEvent):
        return []
    return _scalar(event) if isinstance(event, yaml.ScalarEvent) else {}


_RESOLVER = yaml.resolver.Resolver()
_CONSTRUCTOR = yaml.constructor.SafeConstructor()
_SCHEMA = "tag:yaml.org,2002:"
_TEXT = frozenset((_SCHEMA + "str", _SCHEMA + "timestamp"))
_PLAIN: Mapping[str, Callable[[object, yaml.ScalarNode], object]] = {
    kind: _CONSTRUCTOR.yaml_constructors[kind]
    for kind in (_SCHEMA + name for name in ("null", "bool", "int", "float"))
}


def _scalar(event: yaml.ScalarEvent) -> object:
    """Return a scalar as YAML 1.1 reads it, except that dates and long scalars stay text."""
    value: str = event.value
    if len(value) > _LONGEST_NUMBER:
        return value
    kind = _RESOLVER.resolve(yaml.ScalarNode, value, event.implicit)  # type: ignore[no-untyped-call]
    if kind in _TEXT:
        return value
    if kind not in _PLAIN:  # `<<`, which merges, and `=`
        raise _refusal(f"`{value}` has a meaning of its own in YAML; quote it", event)
    try:
        return _PLAIN[kind](_CONSTRUCTOR, yaml.ScalarNode(kind, value))
    except ValueError:
        raise _refusal(f"`{value}` is not a number", event) from None


def _refusal(problem: str, event: Any) -> yaml.MarkedYAMLError:  # noqa: ANN401 (libyaml's marks are of its own type)
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
