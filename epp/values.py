"""The base of values that compiled code reads often: compared, and shown, by their fields.

As a `msgspec.Struct`, but mypyc finds the fields of its own classes without a look-up
(docs/adr/0013-compiled.md).
"""

from typing import TypeVar

from mypy_extensions import mypyc_attr

V = TypeVar("V", bound="Value")


@mypyc_attr(acyclic=True)
class Value:
    """Equal to another of its class with the same fields. It does not change."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and fields_of(other) == fields_of(self)

    def __hash__(self) -> int:
        return hash(tuple(fields_of(self).values()))

    def __repr__(self) -> str:
        shown = ", ".join([f"{name}={value!r}" for name, value in fields_of(self).items()])
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[object, ...]:
        return _made, (type(self), fields_of(self))


def fields_of(value: object) -> dict[str, object]:
    """Return the fields of a value by their names, without private ones."""
    kind = type(value)
    names = getattr(kind, "__mypyc_attrs__", None)
    if names is None:
        names = vars(value)
    return {name: getattr(value, name) for name in names if not name.startswith("_")}


def _made(kind: type[Value], fields: dict[str, object]) -> Value:
    """Return what `pickle` reads."""
    return kind(**fields)


def replaced(value: V, **fields: object) -> V:
    """Return a value with other values of some fields (`msgspec.structs.replace`)."""
    return type(value)(**fields_of(value) | fields)
