"""The plug-ins of a file: built from their parameters, started, and known by their names."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from epp.config.catalogue import DEPRECATED, PLUGINS, unread
from epp.config.registry import (
    build,
    check_called,
    check_scheduled,
    is_idle,
    plugin_class,
    plugin_code,
    users_class,
)
from epp.config.schema import PluginSpec, near
from epp.errors import ConfigError
from epp.model.events import Event
from epp.model.listeners import Listener
from epp.policy.attribute_sources import UNKNOWN_TO_FLEET
from epp.policy.effects import Effect, effects
from epp.policy.plugins import Startable, effect_of
from epp.policy.profile import EventSubscription

T = TypeVar("T")


class Plugins(Mapping[str, Any]):
    """The started plug-ins by name, in the order of the file.

    `structs` are the same as they were configured. `subscriptions` are what plug-ins want to be
    notified of. `warnings` name parameters that are written and not honoured.
    """

    def __init__(self, specs: list[PluginSpec], below: Callable[[int], int] | None = None) -> None:
        self.specs = specs
        self.structs: dict[str, Any] = {}
        self.subscriptions: list[EventSubscription] = []
        self.warnings: list[str] = []
        self.below = below or random.Random().randrange  # noqa: S311 (chance, not secrets)
        self._started: dict[str, Any] = {}
        self._starting: list[str] = []
        self._places: dict[str, str] = {}
        self._users: dict[str, type[Any] | None] = {}
        for position, spec in enumerate(specs):
            self._build(spec, f"plugins[{position}]")
        for name in list(self.structs):
            self._start(name)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 (any plug-in)
        return self._started[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.structs)

    def __len__(self) -> int:
        return len(self.structs)

    def having(self, kind: type[T]) -> tuple[T, ...]:
        """Return the started plug-ins of a kind, each once."""
        return tuple(each for each in self.values() if isinstance(each, kind))

    def refer(self, name: str, place: str, *, known: Iterable[str] = ()) -> Any:  # noqa: ANN401
        """Return a started plug-in by its name.

        One of the types `known` is added, with its defaults, if the file does not list it, as
        llm-d-router does. Raises `ConfigError` with the place that names it.
        """
        if name not in self.structs:
            if name not in known:
                raise ConfigError(_unnamed(name, [*self.structs, *known]), place)
            self.add(name)
        return self._started[name]

    def add(self, kind: str) -> None:
        """Add a plug-in that the file does not list, with its defaults, under its type's name."""
        self.specs.append(PluginSpec(kind))
        self._build(self.specs[-1], f"plugins[{len(self.specs) - 1}]")
        self._start(kind)

    # Building.

    def _build(self, spec: PluginSpec, place: str) -> None:
        spec.name = spec.name or spec.type
        if spec.name in self.structs:
            raise ConfigError(f"a second plug-in is named `{spec.name}`", f"{place}.name")
        written = spec.parameters or {}
        kind = self._class(spec.type, place)
        ignored = unread(spec.type, written)
        self._places[spec.name] = parameters = f"{place}.parameters"
        with plugin_code(f"`{spec.name}` does not take its parameters", parameters):
            read = {key: value for key, value in written.items() if key not in ignored}
            struct = build(kind, read, parameters)
            spec.parameters = {
                **msgspec.to_builtins(struct),
                **{key: written[key] for key in ignored},
            }
        self.structs[spec.name] = struct
        self.warnings += _unhonoured(spec.name, kind, read)
        self.warnings += (f"{spec.name}: `{each}` is {why}" for each, why in ignored.items())

    def _class(self, name: str, place: str) -> type[Any]:
        if name not in self._users:
            self._users[name] = users_class(name, f"{place}.type")
        found = self._users[name]
        if found is None:
            if name in DEPRECATED:
                self.warnings.append(f"{place}.type: `{name}` is deprecated: {DEPRECATED[name]}")
            found = plugin_class(name, f"{place}.type")
        return found

    # Starting. The plug-ins see this as their `PluginContext`.

    def _start(self, name: str) -> Any:  # noqa: ANN401 (any plug-in)
        if name in self._started:
            return self._started[name]
        if name in self._starting:
            circle = " -> ".join([*self._starting[self._starting.index(name) :], name])
            raise ConfigError(
                f"plug-ins depend on each other in a circle: {circle}", self.place(name)
            )
        struct = self.structs[name]
        self._starting.append(name)
        try:
            with plugin_code(f"`{name}` does not start", self.place(name)):
                started = self._begin(struct)
            if self._is_users(name):
                check_called(started, self._place_of_type(name))
                if is_idle(struct):
                    self.warnings.append(
                        f"{self._place_of_type(name)}: `{name}` has no method that the picker"
                        " calls, such as `filter`, `score` or `pick`"
                    )
        except ConfigError as error:
            raise ConfigError(error.problem, error.place or self.place(name)) from error
        finally:
            self._starting.pop()
        self._started[name] = started
        return started

    def _begin(self, struct: object) -> object:
        try:
            return struct.start(self) if isinstance(struct, Startable) else struct
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def check_scheduled(self, name: str) -> None:
        """Raise `ConfigError` if a profile cannot call a user's plug-in."""
        if self._is_users(name):
            check_scheduled(self[name], self._place_of_type(name))

    def _is_users(self, name: str) -> bool:
        return isinstance(self.structs[name], tuple(filter(None, self._users.values())))

    def _place_of_type(self, name: str) -> str:
        return self.place(name).removesuffix("parameters") + "type"

    def plugin(self, name: str, kind: type[T], default: T | None = None) -> T:
        """Return another plug-in (`PluginContext.plugin`)."""
        if default is not None and self._stands_for_default(name):
            if kind not in UNKNOWN_TO_FLEET:
                return default
            self.add(name)
        user = self._starting[-1]
        place = f"{self.place(user)}{_path_to(name, self.structs[user])}"
        if name not in self.structs:
            raise ConfigError(_unnamed(name, self.structs), place)
        found = self._start(name)
        if not isinstance(found, kind):
            raise ConfigError(f"`{name}` is not a {_words(kind)}", place)
        return found

    def _stands_for_default(self, name: str) -> bool:
        """Whether a name is empty, or that of a type not in the file."""
        return name not in self.structs and (not name or name in PLUGINS)

    @property
    def first_of_its_type(self) -> bool:
        """Whether the plug-in that is started is the file's first of its class."""
        user = self.structs[self._starting[-1]]
        return next(each for each in self.structs.values() if type(each) is type(user)) is user

    def first_of(self, kind: str) -> str:
        """Return the name of the file's first of a type (`PluginContext.first_of`)."""
        return next((each.name for each in self.specs if each.type == kind), kind)

    def subscribe(self, kinds: Iterable[type[Event]], listener: Listener) -> None:
        """Remember the subscription of a plug-in (`PluginContext.subscribe`)."""
        self.subscriptions.append(EventSubscription(self._starting[-1], tuple(kinds), listener))

    def place(self, name: str) -> str:
        """Return the path of the parameters of a plug-in."""
        return self._places[name]


def _unnamed(name: str, known: Iterable[str]) -> str:
    """Return the error that no plug-in has a name, with similar names."""
    if name in PLUGINS:
        return f"no plug-in is named `{name}`; to use that type, add `- type: {name}` to `plugins`"
    return f"no plug-in is named `{name}`{near(name, known)}"


def _unhonoured(name: str, kind: type[Any], written: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each parameter in the file that is not honoured."""
    effect = effect_of(kind)
    if effect is not None:
        yield f"{name}: {effect}"
        return
    known = effects(kind)
    for path in dict.fromkeys(_written_paths(written, "")):  # a list's items have the same ones
        found: Effect | None = known.get(path)
        above = path.rpartition(".")[0].removesuffix("[]")
        if found is not None and known.get(above) is None:
            yield f"{name}: `{path}` is {found}"


def _written_paths(written: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in written.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from _written_paths(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    yield from _written_paths(item, f"{prefix}{key}[].")


def _path_to(value: str, struct: object) -> str:
    """Return the path of the field that has a value, with a leading dot; empty if none has it."""
    for field in msgspec.structs.fields(type(struct)):  # type: ignore[arg-type]  # a Struct
        found = getattr(struct, field.name)
        if found == value or (isinstance(found, list | tuple) and value in found):
            return f".{field.encode_name}"
        if isinstance(found, msgspec.Struct) and (inner := _path_to(value, found)):
            return f".{field.encode_name}{inner}"
    return ""


def _words(kind: type[Any]) -> str:
    """Return a class's name in words: `PrefixMatchInfo` is a prefix match info."""
    return "".join(f" {each.lower()}" if each.isupper() else each for each in kind.__name__).strip()
