"""Bounds for dictionaries whose keys clients choose."""

from typing import Final, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

LONGEST_NAME: Final = 1024
"""Nothing is learned about models with longer names, in characters: engines may accept any."""


def make_room(table: dict[Key, Value], most: int) -> None:
    """Drop the oldest entry if there are `most` entries already.

    Use an `OrderedDict` for a table that is always full: a dict skips all dropped entries to find
    its first one.
    """
    if len(table) >= most:
        del table[next(iter(table))]
