"""Bounds for dictionaries whose keys clients choose."""

from typing import Final, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

LONGEST_NAME: Final = 1024
"""The longest name of a model that is learned about, in characters: some engines accept any."""


def make_room(table: dict[Key, Value], most: int) -> None:
    """Drop the oldest entry if there are `most` entries already.

    Use an `OrderedDict` for a table that is always full: a dict searches for its first entry past
    all those that were dropped.
    """
    if len(table) >= most:
        del table[next(iter(table))]
