"""Compiled code finds methods and attributes where Python does (`epp/calls.h`)."""

from typing import Any

import pytest

from epp.adapters.extproc.streams import OpenStreams


class Plain:
    def __init__(self):
        self.told = []

    @property
    def awaits_request(self):
        return True

    def refuse(self, error):
        self.told.append(f"its class: {error.reason}")


class OfItsOwn(Plain):
    """A method that lies in the object goes before the one of its class."""

    def __init__(self):
        super().__init__()
        self.__dict__["refuse"] = lambda error: self.told.append(f"its own: {error.reason}")


class Shadowed(Plain):
    """A property goes before what lies in the object."""

    def __init__(self):
        super().__init__()
        self.__dict__["awaits_request"] = None


class MadeUp:
    """It has nothing, and makes up what it is asked for."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        if name == "awaits_request":
            return True
        return lambda error: self.told.append(f"made up: {error.reason}")


class WithCallable(Plain):
    """Its method is an object of another class, which is not bound to it."""

    refuse: Any = staticmethod(lambda error: TOLD.append(error.reason))


class Slotted:
    __slots__ = ("awaits_request", "refuse")


TOLD: list[str] = []


def refuse_one(stream: Any):
    OpenStreams(float, max_held_bytes=10, request_timeout=0).record_held(stream, 11)


@pytest.mark.parametrize(
    ("kind", "source"),
    [(Plain, "its class"), (OfItsOwn, "its own"), (Shadowed, "its class"), (MadeUp, "made up")],
)
def test_methods_and_attributes_are_found_where_python_finds_them(kind, source):
    stream = kind()
    refuse_one(stream)
    assert stream.told == [f"{source}: held-bytes"]


def test_a_class_that_changes_is_looked_at_again():
    def other(self, error):
        self.told.append(f"changed: {error.reason}")

    parent: Any = type("Parent", (Plain,), {})
    child: Any = type("Child", (parent,), {})
    stream = child()
    refuse_one(stream)
    for changed in (child, parent):
        changed.refuse = other
        refuse_one(stream)
        refuse_one(Plain())
        del changed.refuse
        refuse_one(stream)
    assert stream.told == [
        f"{where}: held-bytes" for where in ("its class", *2 * ("changed", "its class"))
    ]


def test_classes_that_take_turns_are_told_apart():
    streams: list[Any] = [Plain(), OfItsOwn(), MadeUp(), Shadowed()]
    for _ in range(3):
        for stream in streams:
            refuse_one(stream)
    assert [each.told[-1] for each in streams] == [
        f"{where}: held-bytes" for where in ("its class", "its own", "made up", "its class")
    ]


def test_a_method_may_be_anything_that_can_be_called():
    slotted: Any = Slotted()
    slotted.awaits_request, slotted.refuse = True, WithCallable.refuse
    for stream in (WithCallable(), slotted):
        TOLD.clear()
        refuse_one(stream)
        assert TOLD == ["held-bytes"]


def test_what_is_missing_and_what_raises_are_errors():
    with pytest.raises(AttributeError, match="awaits_request"):
        refuse_one(Slotted())
    with pytest.raises(AttributeError, match="told"):
        refuse_one(Plain.__new__(Plain))
