"""The LoRA adapters that a file asks for, and the steps that make an engine have them.

Two forms are read: `adapters: [{name, path}]`, in which an adapter that is removed from the list is
unloaded, and the `vLLMLoRAConfig` of the Gateway API inference extension's LoRA syncer. This module
knows no HTTP.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec
import yaml


class InvalidAdapters(ValueError):
    """The file is invalid; the message says where."""


class Adapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One adapter: its name in requests, and its folder or its name on a hub."""

    name: str
    path: str

    def __post_init__(self) -> None:
        if not self.name or not self.path:
            raise ValueError("name and path must not be empty")


class Wanted(msgspec.Struct, frozen=True):
    """What a file asks for: adapters by name, and names that must not be served."""

    present: dict[str, Adapter] = {}
    absent: frozenset[str] = frozenset()


class Load(msgspec.Struct, frozen=True):
    """Load an adapter; with `replace`, in place of another one of its name."""

    adapter: Adapter
    replace: bool = False


class Unload(msgspec.Struct, frozen=True):
    """Unload the adapter of a name."""

    name: str


Step = Load | Unload


class _Own(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    adapters: list[Adapter]


class _Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    source: str = ""
    base: str | None = msgspec.field(default=None, name="base-model")


class _Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: list[_Listed] = []


class _Syncer(msgspec.Struct, frozen=True, rename="camel"):
    """`host`, `port` and the base models are not read, because this server knows them better."""

    ensure_exist: _Listing = _Listing()
    ensure_not_exist: _Listing = _Listing()


SYNCER = "vLLMLoRAConfig"


def read(text: str, served: str) -> Wanted:
    """Return what the text of a file asks for; nothing for an empty one. Raises `InvalidAdapters`.

    `served` is the name of the model itself, which an adapter cannot have.
    """
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidAdapters(f"not YAML: {' '.join(str(error).split())}") from error
    if given is None:
        return Wanted()
    if not isinstance(given, dict):
        raise InvalidAdapters(
            "this must be a mapping, such as `adapters: [{name: sql, path: /sql}]`"
        )
    try:
        wanted = _syncer(given[SYNCER]) if SYNCER in given else _own(given)
    except msgspec.ValidationError as error:
        raise InvalidAdapters(str(error)) from error
    if served in wanted.present:
        raise InvalidAdapters(
            f"{served} is the name of the model itself: give the adapter another name"
        )
    return wanted


def _own(given: object) -> Wanted:
    return Wanted(_by_name(msgspec.convert(given, _Own).adapters))


def _syncer(given: object) -> Wanted:
    config = msgspec.convert(given, _Syncer)
    present = _by_name([Adapter(each.id, each.source) for each in config.ensure_exist.models])
    absent = frozenset(each.id for each in config.ensure_not_exist.models)
    if both := sorted(absent & present.keys()):
        raise InvalidAdapters(f"{', '.join(both)}: listed in both ensureExist and ensureNotExist")
    return Wanted(present, absent)


def _by_name(adapters: list[Adapter]) -> dict[str, Adapter]:
    named: dict[str, Adapter] = {}
    for adapter in adapters:
        if named.setdefault(adapter.name, adapter) != adapter:
            raise InvalidAdapters(f"{adapter.name} is listed twice, with different paths")
    return named


def steps(wanted: Wanted, loaded: Mapping[str, str], own: Collection[str]) -> Iterator[Step]:
    """Yield the steps from an engine that has `loaded` (path by name) to what is wanted.

    `own` are the adapters that were loaded because of this file: others that it does not name stay.
    Unloading comes first, because it makes room.
    """
    for name in loaded:
        if name in wanted.absent or (name in own and name not in wanted.present):
            yield Unload(name)
    for name, adapter in wanted.present.items():
        if name not in loaded:
            yield Load(adapter)
        elif loaded[name] != adapter.path:
            yield Load(adapter, replace=True)
