"""Text of others, for a terminal or a log that people read."""

import json
import re
from typing import Final

_USER: Final = re.compile(r"^(\w+://)?.*@", re.DOTALL)


def printable(text: str, most: int | None = None) -> str:
    r"""Return a text without characters that a terminal obeys, or that do not show themselves.

    Each that is not printable (Python's `str.isprintable`: controls, ends of lines, those that
    change the direction of writing, halves of surrogate pairs) is written as JSON escapes it:
    `\n`, `\u001b`. A printable text is returned as it is. Of one that is
    longer than `most` characters as many are returned, and an ellipsis.
    """
    if most is not None and len(text) > most:
        text = f"{text[:most]}..."
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """Return the lines of a text, each printable; those of values are to be printable before."""
    return "\n".join(map(printable, text.split("\n")))


def without_user(url: str) -> str:
    """Return a URL with `...` in place of a user and a password."""
    return _USER.sub(r"\1...@", url)
