"""Bounds for dictionaries whose keys clients choose."""

from typing import Final, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

LONGEST_NAME: Final = 1024
"""Characters of a model's name, beyond which nothing is learned of it: some engines take any."""


def make_room(table: dict[Key, Value], most: int) -> None:
    """Drop the entry that was made first, if there are `most` entries already.

    One that is always full had better be an `OrderedDict`: others look for their first past all
    that were dropped.
    """
    if len(table) >= most:
        del table[next(iter(table))]
