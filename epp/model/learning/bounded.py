"""Bounds for dictionaries whose keys clients choose."""

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def make_room(table: dict[Key, Value], most: int) -> None:
    """Drop the entry that was made first, where there are `most` entries already."""
    if len(table) >= most:
        del table[next(iter(table))]
