"""A scanner of JSON for texts, brackets and colons, and the positions of an object's members.

All patterns for texts use `TEXT`, which matches a text without an end up to the end of the bytes. A
pattern that failed there would be tried again at each quote in the text, in quadratic time.
"""

import re
from collections.abc import Collection, Iterator

import msgspec

TEXT = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:(")|\\?\Z)'
"""A text (`re.DOTALL`). Its group is the last quote, if that is there."""
TOKEN = re.compile(TEXT + rb"|[{}\[\]:]", re.DOTALL)
LOOKED_AT = 2 << 20
"""Bytes in which members are looked for: 10 ms of work."""
_MAX_TOKENS = 30_000
"""Texts, brackets and colons that are looked at: 10 ms, if they are made for it 30."""
_DEEPEST = 2
_LONGEST_KEY = 64
_text = msgspec.json.Decoder(str).decode
_SCALAR = re.compile(rb'\s*+([^\s",:{}\[\]]++)')

Path = tuple[bytes, ...]
"""The keys that lead to a member; those in arrays have none. `()` is the whole object's."""
Span = tuple[int, int]
"""Where something starts and ends in bytes."""


def allowance(most: int = _MAX_TOKENS) -> Iterator[int]:
    """Return the allowance of one call or several: each token takes one."""
    return iter(range(most))


def members(
    data: bytes, wanted: Collection[Path], left: Iterator[int] | None = None
) -> Iterator[tuple[Path, Span]]:
    """Yield the positions of values at some paths of at most two keys, in the order of their ends.

    If the bytes are not JSON, positions may be missing or wrong. Values beyond `LOOKED_AT` and
    `left` are missing. The whole object has the path `()`, if all of it was scanned.
    """
    keys = {path[-1] for path in wanted if path}
    opened: list[tuple[bytes, Path | None, int]] = []  # its key, what is wanted of it, its start
    key = previous = b""
    value: Path | None = () if () in wanted else None
    for token, _ in zip(TOKEN.finditer(data, 0, LOOKED_AT), left or allowance(), strict=False):
        symbol = token[0]
        if symbol == b":":
            key = _key(previous) if len(opened) <= _DEEPEST else b""
            value = (*[each[0] for each in opened[1:]], key) if key in keys else None
            value = value if value in wanted else None
            if value is not None and (scalar := _SCALAR.match(data, token.end())):
                yield value, scalar.span(1)
                value = None
        elif symbol in (b"{", b"["):
            opened.append((key if symbol == b"{" else symbol, value, token.start()))
            key, value = b"", None
        elif symbol in (b"}", b"]"):
            _, held, start = opened.pop() if opened else (b"", None, 0)
            if held is not None:
                yield held, (start, token.end())
            key, value = b"", None
        else:
            if value is not None and token.lastindex:
                yield value, token.span()
            key, value = b"", None
        previous = symbol


def member_span(data: bytes, key: bytes) -> Span | None:
    """Find the value of a key in an object, the last one; None if it has none, or null."""
    span = dict(members(data, ((key,),))).get((key,))
    return None if span is None or data[slice(*span)] == b"null" else span


def member(data: bytes, key: bytes) -> bytes:
    """Return the JSON that `member_span` finds; empty without any."""
    span = member_span(data, key)
    return b"" if span is None else data[slice(*span)]


def _key(quoted: bytes) -> bytes:
    if b"\\" not in quoted or len(quoted) > _LONGEST_KEY:
        return quoted[1:-1]
    try:
        return _text(quoted).encode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return b""
