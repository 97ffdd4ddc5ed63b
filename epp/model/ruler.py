"""How many tokens the blocks of a text are: learned from what servers report.

Two things are learned. Bytes a token, per model and kind of content, from every prompt whose
length was reported. And the exact length of prefixes that were whole prompts once: the second
turn of a conversation starts with the first, whose tokens the server has counted.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
from cachetools import LRUCache

from epp.model.blocks import BlockHash, Chain

_LEAST, _MOST = 1.0, 16.0
_GAIN = 0.1
_LEAST_SIZE = 512
_MODELS = 1000
_PINS = 1 << 18
_SAMPLE = 1024
_WORDS = bytes(range(ord("a"), ord("z") + 1)) + bytes(range(ord("A"), ord("Z") + 1)) + b" "
_ASCII = bytes(range(128))


Kind = Literal["prose", "code", "script"]
"""What a text is made of, as far as it matters to tokens: words and spaces; much else in ASCII
(code, tables, JSON); much beyond ASCII, as it is or escaped."""

DEFAULT_RATES: Mapping[Kind, float] = {"prose": 4.0, "code": 3.2, "script": 2.4}
"""Bytes a token where nothing is known: about what tokenizers of the day come to."""


def kind_of(text: bytes, start: int = 0, end: int | None = None) -> Kind:
    """Tell the kind of a text, or of a part of one, by a sample of its middle."""
    end = len(text) if end is None else end
    start += max(0, end - start - _SAMPLE) // 2
    sample = text[start : min(end, start + _SAMPLE)]
    if 5 * len(sample.translate(None, _WORDS)) <= len(sample):
        return "prose"
    foreign = len(sample.translate(None, _ASCII)) + 6 * sample.count(b"\\u")
    return "script" if 5 * foreign > len(sample) else "code"


class Measure(msgspec.Struct, frozen=True):
    """A prompt in tokens: `total`, and `ends[i]` where its block i ends."""

    total: int
    ends: Sequence[int]

    def covered(self, blocks: int) -> int:
        """Return how many tokens the first `blocks` blocks are."""
        return self.ends[blocks - 1] if blocks else 0

    def sizes(self) -> list[int]:
        """Return the length of each block."""
        return [end - start for start, end in pairwise((0, *self.ends))]


class Rulers:
    """What is known of texts' lengths; token ids need no learning."""

    def __init__(self) -> None:
        self._rates: LRUCache[str, dict[Kind, float]] = LRUCache(_MODELS)
        self._pins: OrderedDict[BlockHash, int] = OrderedDict()

    def rate(self, model: str, kind: Kind) -> float:
        """Return the bytes a token of a model and kind of text.

        Of a kind that was not seen yet, the model is taken to be as far from the default as of
        one that was.
        """
        rates = self._rates.get(model)
        if rates is None:
            return DEFAULT_RATES[kind]
        if kind in rates:
            return rates[kind]
        known, rate = next(iter(rates.items()))
        return rate * DEFAULT_RATES[kind] / DEFAULT_RATES[known]

    def measure(self, chain: Chain, model: str, text: bytes) -> Measure:
        """Measure a prompt, whose bytes are `text`.

        What follows a long prefix of known length is taken to be like it, where it is of a kind.
        """
        if chain.exact:
            return Measure(chain.size, chain.ends)
        if not self._pins.keys().isdisjoint(chain.hashes):
            return self._between_pins(chain, model, text)
        rate = self.rate(model, kind_of(text))
        ends = [int(end / rate) for end in chain.ends]
        return Measure(max(1, round(chain.size / rate)), ends)

    def _between_pins(self, chain: Chain, model: str, text: bytes) -> Measure:
        ends: list[int] = []
        bytes_before = tokens_before = 0
        for position, pin in enumerate(map(self._pins.get, chain.hashes)):
            if pin is None or pin < tokens_before:
                continue
            stretch = chain.ends[len(ends) : position + 1]
            slope = (pin - tokens_before) / (stretch[-1] - bytes_before)
            ends += [tokens_before + int((end - bytes_before) * slope) for end in stretch[:-1]]
            ends.append(pin)
            bytes_before, tokens_before = stretch[-1], pin
        rate = self._rate_after(model, text, bytes_before, tokens_before)
        rest = chain.ends[len(ends) :]
        ends += [tokens_before + int((end - bytes_before) / rate) for end in rest]
        return Measure(max(1, tokens_before + round((chain.size - bytes_before) / rate)), ends)

    def _rate_after(self, model: str, text: bytes, size: int, tokens: int) -> float:
        """Return the rate of what comes after `size` bytes that were `tokens` tokens."""
        alike = len(text) - size < _LEAST_SIZE
        if size < _LEAST_SIZE or not tokens:
            return self.rate(model, kind_of(text, size))
        if alike or kind_of(text, 0, size) == kind_of(text, size):
            return size / tokens
        return self.rate(model, kind_of(text, size))

    def learn(self, model: str, kind: Kind, size: int, tokens: int) -> None:
        """Take in that a text of `size` bytes was `tokens` tokens.

        Short ones are passed over: a chat template is most of what they are.
        """
        if size < _LEAST_SIZE or tokens < 1:
            return
        seen = min(_MOST, max(_LEAST, size / tokens))
        rates = self._rates.setdefault(model, {})
        before = rates.get(kind, seen)
        rates[kind] = before + _GAIN * (seen - before)

    def pin(self, block_hash: BlockHash, tokens: int) -> None:
        """Take in how many tokens there are up to the end of a block, from the start."""
        self._pins[block_hash] = tokens
        self._pins.move_to_end(block_hash)
        if len(self._pins) > _PINS:
            self._pins.popitem(last=False)

    def pin_at_most(self, block_hash: BlockHash, tokens: int) -> None:
        """Take in a length that may be too great: what lies behind may have been alike, too."""
        self.pin(block_hash, min(tokens, self._pins.get(block_hash, tokens)))
