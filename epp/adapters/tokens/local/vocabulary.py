"""A model's tokenizer, and the cutting of texts into pieces that have the same tokens.

A text is cut before special tokens. The `tokenizers` library splits a text at special tokens
first and encodes the text between two of them by itself, so that nothing after a cut depends on
what is before it, except whether it is the start of the text (sentencepiece's prefix space). A
piece therefore begins with its special token, and is never at the start.

Some special tokens are matched by their neighbours, and are not places to cut: one that strips the
blanks around it, that is found only between words, or that overlaps another.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tokenizers import AddedToken, Encoding, Tokenizer

from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.adapters.tokens.local.windows import WINDOW, encode_in_windows
from epp.protocol.bodies.token_prompts import packed

_PROBES = ("a", "b c")


class Vocabulary:
    """Encodes texts to token ids. Thread-safe; releases the GIL while it encodes.

    `cuts` are special tokens to cut before; those that are not places to cut are ignored.
    `affixes` are the ids that `add_special_tokens` puts before and after a text; None if they
    depend on the text.
    """

    def __init__(self, tokenizer: Tokenizer, cuts: Iterable[str]) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        plain = tokenizer.encode_special_tokens  # special tokens are encoded as text
        added = tokenizer.get_added_tokens_decoder().values()
        self.cuts = () if plain else _places(added, cuts)
        self._cut = re.compile("|".join(map(re.escape, self.cuts)))
        self.affixes = self._find_affixes()

    def pieces(self, text: str) -> list[str]:
        """Return a text cut before its special tokens; the pieces' tokens are those of the text."""
        if not self.cuts:
            return [text]
        ends = [found.start() for found in self._cut.finditer(text)]
        if not ends:
            return [text]
        starts = [0, *ends] if ends[0] else ends
        return [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]

    def encode(self, texts: Sequence[str]) -> dict[str, bytes]:
        """Return each text's ids, without special tokens added. Raises `TextFallback`."""
        short = [text for text in texts if len(text) <= WINDOW]
        encodings = self._batch(short, special=False)
        found = {text: packed(ids) for text, ids in zip(short, encodings, strict=True)}
        for text in texts:
            if text not in found:
                found[text] = encode_in_windows(self._with_places, text)
        return found

    def _batch(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        with _as_fallback():
            batch = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        return [encoding.ids for encoding in batch]

    def _with_places(self, text: str) -> Encoding:
        """Encode a text with the places of its tokens in it."""
        with _as_fallback():
            # `encode` would hold the GIL
            return self._tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def _find_affixes(self) -> tuple[bytes, bytes] | None:
        """Return the ids that `add_special_tokens` puts around any text; None if they vary."""
        found = set()
        for probe in _PROBES:
            bare = self._batch([probe], special=False)[0]
            whole = self._batch([probe], special=True)[0]
            before = next(
                (at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), None
            )
            if before is None or not bare:
                return None
            found.add((packed(whole[:before]), packed(whole[before + len(bare) :])))
        return found.pop() if len(found) == 1 else None


@contextmanager
def _as_fallback() -> Iterator[None]:
    """Turn an error of the library into a fallback to text."""
    try:
        yield
    except Exception as error:  # the library raises `Exception` itself
        raise TextFallback(FallbackCause.FAILED, type(error).__name__) from error


def _places(added: Iterable[AddedToken], candidates: Iterable[str]) -> tuple[str, ...]:
    """Return the candidates before which a text can always be cut."""
    tokens = {token.content: token for token in added}
    first = [token.content for token in tokens.values() if not token.normalized]
    return tuple(
        sorted(
            cut
            for cut in set(candidates)
            if cut in tokens and _stands_alone(tokens[cut], first) and _is_closed(cut, tokens)
        )
    )


def _stands_alone(token: AddedToken, others: Sequence[str]) -> bool:
    """Whether the token is matched wherever its text occurs, whatever other tokens there are."""
    if token.normalized or token.lstrip or token.rstrip or token.single_word:
        return False
    return not any(_overlap(other, token.content) for other in others if other != token.content)


def _overlap(other: str, cut: str) -> bool:
    """Whether another token could match a part of this one's text: leftmost, longest first."""
    return cut in other or any(other.endswith(cut[:size]) for size in range(1, len(cut)))


def _is_closed(cut: str, tokens: Mapping[str, AddedToken]) -> bool:
    """Whether tokens that depend on their neighbours match the same without this token."""
    looking = any(each.lstrip or each.rstrip or each.single_word for each in tokens.values())
    return not looking or not (cut[0].isspace() or re.match(r"\w", cut[0]))
