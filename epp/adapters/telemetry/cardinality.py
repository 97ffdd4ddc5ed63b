"""A bound on the number of label values, which clients choose and could fill the memory with."""

from typing import Final

OTHER: Final = "other"
MAX_VALUES: Final = 1000
"""Values of one label, by default: each costs some 400 lines of a page in request metrics."""
_MAX_CHARACTERS: Final = 256


class BoundedLabel:
    """Maps the first `most` distinct values of a label to themselves, all others to `other`.

    Values of more than 256 characters, and those that are not printable (so perhaps not UTF-8),
    are `other` too. A plain dict and no cache: a value that was admitted must never be evicted,
    or the decrement of a gauge would not meet its increment.
    """

    def __init__(self, most: int = MAX_VALUES) -> None:
        self._most = most
        self._admitted: dict[str, str] = {"": "", OTHER: OTHER}

    def __call__(self, value: str) -> str:
        """Return the label value to export."""
        known = self._admitted.get(value)
        if known is not None:
            return known
        full = len(self._admitted) >= self._most + len(("", OTHER))
        if full or len(value) > _MAX_CHARACTERS or not value.isprintable():
            return OTHER
        self._admitted[value] = value
        return value
