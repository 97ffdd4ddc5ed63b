"""What becomes of parameters: honoured unless the field, or what it is part of, says otherwise."""

from typing import Annotated

import msgspec

from epp.policy.effects import effects, mapped_to, without_effect
from epp.policy.plugins import effect_of

INDEX = mapped_to("the index")
NEVER = without_effect("it never happens")


class Group(msgspec.Struct, frozen=True):
    read: int = 1
    unread: Annotated[int, NEVER] = 2


class Parameters(msgspec.Struct, frozen=True, rename="camel"):
    one_word: Annotated[str, INDEX] = ""
    group: Group | None = None
    items: list[Group] = []
    whole: Annotated[Group, INDEX] = Group()


class Ignored(msgspec.Struct, frozen=True):
    effect = NEVER


def test_effects_are_those_of_the_fields():
    assert effects(Parameters) == {
        "oneWord": INDEX,
        "group": None,
        "group.read": None,
        "group.unread": NEVER,
        "items": None,
        "items[].read": None,
        "items[].unread": NEVER,
        "whole": INDEX,
        "whole.read": INDEX,
        "whole.unread": NEVER,
    }


def test_a_type_is_honoured_unless_it_says_otherwise():
    assert (effect_of(Parameters), effect_of(Ignored)) == (None, NEVER)


def test_an_effect_reads_as_a_sentence():
    assert str(INDEX) == "mapped to the index"
    assert str(NEVER) == "without effect here, because it never happens"


def test_annotations_leave_the_types_as_they_are():
    assert msgspec.convert({"oneWord": "x", "whole": {"read": 3}}, Parameters).whole.read == 3
