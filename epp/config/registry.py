"""The registry of plug-ins: their classes by type, users' own too, built from parameters."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import msgspec

from epp.config.catalogue import DEPRECATED, PLUGINS
from epp.config.schema import near
from epp.errors import ConfigError
from epp.protocol.yaml import convert

ENTRY_POINTS = "warmpick.plugins"
"""The entry point group of users' plug-ins."""


def plugin_class(kind: str, place: str) -> type[Any]:
    """Return the class of a plug-in's name. Raises `ConfigError` that suggests similar names."""
    if kind in PLUGINS:
        return PLUGINS[kind]
    raise ConfigError(f"unknown plug-in type `{kind}`{near(kind, PLUGINS)}", place)


def replaced_by(kind: str) -> str:
    """Return what to write instead of a deprecated type; empty for others."""
    return DEPRECATED.get(kind, "")


def users_class(name: str, place: str) -> type[Any] | None:
    """Return the class that a user registered under a name; None without one.

    Names of built-in plug-ins cannot be taken. Raises `ConfigError` whatever the import raises.
    """
    if name in PLUGINS:
        return None
    from importlib.metadata import entry_points  # noqa: PLC0415 (slow to load, rarely needed)

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        try:
            found = entry.load()
        except Exception as error:
            raise ConfigError(f"`{entry.value}` cannot be imported: {error!r}", place) from error
        if not (isinstance(found, type) and issubclass(found, msgspec.Struct)):
            raise ConfigError(f"`{entry.value}` is no msgspec.Struct", place)
        return found
    return None


def build(kind: type[Any], parameters: dict[str, Any], place: str) -> Any:  # noqa: ANN401 (any plug-in)
    """Return a plug-in's struct with the parameters. Raises `ConfigError` that names the place."""
    try:
        return convert(parameters, kind)
    except ConfigError as error:
        within = f"{place}.{error.place}" if error.place else place
        raise ConfigError(_explain(error.problem, _group_at(kind, error.place)), within) from None


def _explain(message: str, kind: type[Any]) -> str:
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    unknown = message.partition("unknown field `")[2].partition("`")[0]
    if not unknown:
        return message
    accepted = f"; it takes {', '.join(known)}" if known else "; it takes none"
    return f"unknown parameter `{unknown}`{near(unknown, known) or accepted}"


def _group_at(kind: type[Any], path: str) -> type[Any]:
    """Return the struct at a path such as `engineConfigs[0].customMetrics[1]`."""
    for name in re.findall(r"\w+(?=[.\[]|$)", re.sub(r"\[[^]]*\]", "", path)):
        types = [each.type for each in msgspec.structs.fields(kind) if each.encode_name == name]
        kind = next(_structs(types), kind)
    return kind


def _structs(types: Iterable[Any]) -> Iterator[type[Any]]:
    """Yield the structs within annotations."""
    for each in types:
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            yield each
        yield from _structs(get_args(each))
