"""Bounds on label values that clients choose: without them anyone could fill the memory."""

from typing import Final

OTHER: Final = "other"
MOST_VALUES: Final = 1000
_LONGEST: Final = 256


class BoundedLabel:
    """Lets the first `most` distinct values through; later ones read `other`.

    A value once let through always is, so increments and decrements meet. Values of more than
    256 characters, and those that cannot be printed (or even encoded), are `other` at once.
    """

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._seen: dict[str, str] = {"": "", OTHER: OTHER}

    def __call__(self, value: str) -> str:
        """Give the value to show."""
        known = self._seen.get(value)
        if known is not None:
            return known
        full = len(self._seen) >= self._most + len(("", OTHER))
        if full or len(value) > _LONGEST or not value.isprintable():
            return OTHER
        self._seen[value] = value
        return value
