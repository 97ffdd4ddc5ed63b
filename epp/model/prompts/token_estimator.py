"""How many tokens the blocks of a text are: learned from what servers report.

Two things are learned. Bytes a token, per model and kind of content, from every prompt whose
length was reported. And the exact length of prefixes that were whole prompts once: the second
turn of a conversation starts with the first, whose tokens the server has counted.
"""

from typing import Final

from epp.model.kernels import KnownPrefixLengths, kind_of, spread
from epp.model.learning.bounded import make_room
from epp.model.prompts.block_hasher import BlockHash
from epp.model.prompts.chain import Chain
from epp.model.prompts.text_lengths import DEFAULT_RATES, Kind
from epp.model.prompts.token_offsets import TokenOffsets

_LEAST: Final = 1.0
_MOST: Final = 16.0
_GAIN: Final = 0.1
_LEAST_SIZE: Final = 512
_MODELS: Final = 1000
_PINS: Final = 1 << 17


class TokenEstimator:
    """What is known of texts' lengths; token ids need no learning."""

    def __init__(self) -> None:
        self._rates: dict[str, dict[Kind, float]] = {}
        self._pins = KnownPrefixLengths(_PINS)

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

    def offsets(self, chain: Chain, model: str, text: bytes) -> TokenOffsets:
        """Measure a prompt, whose bytes are `text`.

        What follows a long prefix of known length is taken to be like it, where it is of a kind.
        """
        if chain.exact:
            return TokenOffsets(chain.size, chain.ends)
        pins = self._pins.among(chain.hashes)
        size, tokens = (chain.ends[pins[-1][0]], pins[-1][1]) if pins else (0, 0)
        rate = self._rate_after(model, text, size, tokens)
        total = max(1, tokens + round((chain.size - size) / rate))
        return TokenOffsets(total, spread(chain.ends, pins, rate))

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
        rates = self._rates.get(model)
        if rates is None:
            make_room(self._rates, _MODELS)
            rates = self._rates[model] = {}
        before = rates.get(kind, seen)
        rates[kind] = before + _GAIN * (seen - before)

    def pin(self, block_hash: BlockHash, tokens: int) -> None:
        """Take in how many tokens there are up to the end of a block, from the start."""
        self._pins.pin(block_hash, tokens)

    def pin_at_most(self, block_hash: BlockHash, tokens: int) -> None:
        """Take in a length that may be too great: what lies behind may have been alike, too."""
        self._pins.pin_at_most(block_hash, tokens)
