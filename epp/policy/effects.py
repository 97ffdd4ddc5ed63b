"""The effect that llm-d-router's plug-ins and parameters have here: honoured, mapped, or none.

A parameter is honoured unless its field is annotated otherwise. A plug-in type is honoured unless
its class has an `effect` (`epp.policy.plugins.effect_of`).
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec


class Effect(msgspec.Struct, frozen=True):
    """The effect of a plug-in type, parameter, section or flag that is not honoured."""

    kind: Literal["mapped to", "without effect here, because"]
    text: str

    def __str__(self) -> str:
        return f"{self.kind} {self.text}"


def mapped_to(what: str) -> Effect:
    """Mark something that is achieved by other means: `mapped to {what}`."""
    return Effect("mapped to", what)


def without_effect(because: str) -> Effect:
    """Mark what changes nothing: `without effect here, because {because}`."""
    return Effect("without effect here, because", because)


def effects(kind: type[Any]) -> Mapping[str, Effect | None]:
    """Return the effect of each parameter of a struct by its dotted name; None: it is honoured.

    Parameters of a group are named `group.name`, those of a list's items `list[].name`; the
    annotation of a group or list holds for all of it.
    """
    if kind not in _KNOWN:
        _KNOWN[kind] = dict(_effects(kind, "", None))
    return _KNOWN[kind]


_KNOWN: dict[type[Any], Mapping[str, Effect | None]] = {}
"""Annotations are read once: reading them takes a third of a configuration's time to load."""


def _effects(
    kind: type[Any], prefix: str, inherited: Effect | None
) -> Iterator[tuple[str, Effect | None]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        hint, effect = hints[field.name], inherited
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            effect = next((note for note in notes if isinstance(note, Effect)), inherited)
        name = prefix + field.encode_name
        yield name, effect
        for suffix, group in _groups(hint):
            yield from _effects(group, f"{name}{suffix}.", effect)


def _groups(hint: Any) -> Iterator[tuple[str, type[Any]]]:  # noqa: ANN401 (any annotation)
    """Yield the structs within an annotation, with `[]` for those that are items."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield "", hint
    items = "[]" if get_origin(hint) in {list, tuple} else ""
    for inner in get_args(hint):
        for suffix, group in _groups(inner):
            yield items + suffix, group
