"""A deterministic tokenizer for no model at all: pieces by pattern, ids by checksum.

Properties that callers rely on: about 4.2 bytes a token on English prose; a text's tokens are
the concatenation of the tokens of its lines; cutting a text between two tokens and tokenizing
the part before the cut gives the tokens before the cut.
"""

import re
import zlib
from array import array
from collections import OrderedDict

# Scripts without spaces get one token a character.
_SINGLE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_PIECE = re.compile(
    rf"[{_SINGLE}]"
    rf"| ?[^\W\d_{_SINGLE}]{{1,6}}"
    r"| ?\d{1,3}"
    r"| ?[^\w\s]{1,3}| ?_{1,3}"
    r"|\n+|[^\S\n]{1,16}"
    r"|."  # what no class above holds, such as Roman numerals
)
_FIRST_ORDINARY = 256
_SPECIAL = {"end": 0, "system": 1, "developer": 2, "user": 3, "assistant": 4, "tool": 5}
_SEGMENT_CHARS = 4096
_MEMO_MIN_CHARS = 128


def special(name: str) -> int:
    """Give the id of control token `name`, such as "user"; no text ever tokenizes to it."""
    known = _SPECIAL.get(name)
    if known is not None:
        return known
    rest = _FIRST_ORDINARY - len(_SPECIAL)
    return len(_SPECIAL) + zlib.crc32(name.encode("utf-8", "surrogatepass")) % rest


class _Vocabulary(dict[str, int]):
    """Piece to id, filled on demand; emptied when it has grown past `bound` pieces."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self._bound = bound

    def __missing__(self, piece: str) -> int:
        if len(self) >= self._bound:
            self.clear()
        checksum = zlib.crc32(piece.encode("utf-8", "surrogatepass"))
        token = self[piece] = _FIRST_ORDINARY + (checksum & 0xFFFFFF)
        return token


class Tokenizer:
    """Text to ids. Remembers long segments, at most `memo_chars` characters of them."""

    def __init__(self, memo_chars: int = 16_000_000) -> None:
        self._vocabulary = _Vocabulary(bound=500_000)
        self._memo: OrderedDict[str, array[int]] = OrderedDict()
        self._memo_chars = memo_chars
        self._held_chars = 0

    def encode(self, text: str) -> "array[int]":
        """Token ids of `text`; a fresh array that the caller may keep."""
        ids: array[int] = array("I")
        start = 0
        while start < len(text):
            end = _segment_end(text, start)
            ids.extend(self._segment(text[start:end]))
            start = end
        return ids

    def token(self, piece: str) -> int:
        """Give the id of a text that is exactly one token."""
        return self._vocabulary[piece]

    def _segment(self, text: str) -> "array[int]":
        if len(text) < _MEMO_MIN_CHARS:
            return self._tokenize(text)
        known = self._memo.get(text)
        if known is not None:
            self._memo.move_to_end(text)
            return known
        known = self._memo[text] = self._tokenize(text)
        self._held_chars += len(text)
        while self._held_chars > self._memo_chars and len(self._memo) > 1:
            self._held_chars -= len(self._memo.popitem(last=False)[0])
        return known

    def _tokenize(self, text: str) -> "array[int]":
        return array("I", map(self._vocabulary.__getitem__, _PIECE.findall(text)))


def pieces(text: str) -> list[str]:
    """Split `text` into the texts of its tokens."""
    return _PIECE.findall(text)


def _segment_end(text: str, start: int) -> int:
    """End of the segment at `start`: after a run of newlines, where tokens always part."""
    if len(text) - start <= _SEGMENT_CHARS:
        return len(text)
    newline = text.find("\n", start + _SEGMENT_CHARS)
    if newline < 0:
        return len(text)
    end = newline
    while end < len(text) and text[end] == "\n":
        end += 1
    return end
