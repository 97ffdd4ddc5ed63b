"""Tables whose keys clients name, kept from growing without end."""

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def make_room(table: dict[Key, Value], most: int) -> None:
    """Forget the entry that was made first, where there are `most` already."""
    if len(table) >= most:
        del table[next(iter(table))]
