"""The estimator of token counts of texts, which learns from what servers report.

Two things are learned: bytes a token, per model and kind of text, from every prompt whose length
was reported; and the exact length of prefixes that were whole prompts once: the second turn of a
conversation starts with the first, whose tokens the server has counted.
"""

from typing import Final

from epp.model.learning.bounded import make_room
from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import BlockHash
from epp.model.prompts.known_prefix_lengths import KnownPrefixLengths
from epp.model.prompts.text_lengths import DEFAULT_RATES, Kind, kind_of, spread
from epp.model.prompts.token_offsets import TokenOffsets

_LEAST_RATE: Final = 1.0
_MOST_RATE: Final = 16.0
"""Bytes a token; a report outside of these bounds counts as the nearer one."""
_GAIN: Final = 0.1
"""The weight of one report in the average of bytes a token."""
_LEAST_BYTES: Final = 512
"""Bytes of a text below which bytes a token are not learned: most of it is chat template."""
_MODELS: Final = 1000
"""Models whose bytes a token are kept, at most."""
_DEFAULT_ERROR: Final = 0.25
"""The error of an estimate, as a share of it, if none was compared with a report."""
_LEAST_ESTIMATED: Final = 64
"""Estimated tokens below which their error is not learned: most of it is chat template."""
_PREFIXES: Final = 1 << 17
"""Prefixes whose lengths are kept, at least."""


class TokenEstimator:
    """Estimates lengths of texts in tokens; those of token ids are known."""

    def __init__(self) -> None:
        self._rates: dict[str, dict[Kind, float]] = {}
        self._errors: dict[tuple[str, Kind], float] = {}
        self._prefixes = KnownPrefixLengths(_PREFIXES)

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
        for known, rate in rates.items():
            if known != "media":
                return rate * DEFAULT_RATES[kind] / DEFAULT_RATES[known]
        return DEFAULT_RATES[kind]

    def offsets(self, chain: Chain, model: str, text: bytes, kind: Kind) -> TokenOffsets:
        """Estimate a prompt in tokens, whose bytes are `text`, of a `kind` as a whole.

        What follows a long prefix of known length is taken to be like it, if it is of a kind.
        """
        if chain.exact:
            return TokenOffsets(chain.size, chain.ends, chain.size)
        known = self._prefixes.among(chain.hashes)
        size, tokens = (chain.ends[known[-1][0]], known[-1][1]) if known else (0, 0)
        rate = self._rate_after(model, text, kind, size, tokens)
        total = max(1, tokens + round((chain.size - size) / rate))
        return TokenOffsets(total, spread(chain.ends, known, rate), tokens)

    def known_offsets(self, chain: Chain) -> TokenOffsets | None:
        """Return a text's length in tokens if that up to its last block is known."""
        known = self._prefixes.among(chain.hashes)
        if not known or known[-1][0] != len(chain.ends) - 1:
            return None
        return TokenOffsets(max(1, known[-1][1]), spread(chain.ends, known, 1.0))

    def _rate_after(self, model: str, text: bytes, kind: Kind, size: int, tokens: int) -> float:
        """Return the bytes a token of what follows `size` bytes that are `tokens` tokens."""
        if not size:
            return self.rate(model, kind)
        if size < _LEAST_BYTES or not tokens:
            return self.rate(model, kind_of(text, size))
        if len(text) - size < _LEAST_BYTES:
            return size / tokens
        after = kind_of(text, size)
        return size / tokens if kind_of(text, 0, size) == after else self.rate(model, after)

    def learn(self, model: str, kind: Kind, size: int, tokens: int) -> None:
        """Learn that a text of `size` bytes was `tokens` tokens."""
        if size < _LEAST_BYTES or tokens < 1:
            return
        seen = min(_MOST_RATE, max(_LEAST_RATE, size / tokens))
        rates = self._rates.get(model)
        if rates is None:
            make_room(self._rates, _MODELS)
            rates = self._rates[model] = {}
        before = rates.get(kind, seen)
        rates[kind] = before + _GAIN * (seen - before)

    @staticmethod
    def believes(chain: Chain, tokens: int, kind: Kind) -> bool:
        """Return whether a prompt can have so many tokens: who says so may be wrong, or lie.

        Media have more than their bytes show, a short text what the chat template adds.
        """
        if chain.exact or kind == "media":
            return True
        least, most = chain.size / _MOST_RATE, max(chain.size, _LEAST_BYTES) / _LEAST_RATE
        return least <= tokens <= most

    def error(self, model: str, kind: Kind) -> float:
        """Return how wrong the estimated part of a length is, as a share of it."""
        return self._errors.get((model, kind), _DEFAULT_ERROR)

    def learn_error(self, model: str, kind: Kind, offsets: TokenOffsets, tokens: int) -> None:
        """Compare an estimate with the `tokens` that a server has counted."""
        estimated = offsets.total - offsets.known
        if estimated < _LEAST_ESTIMATED:
            return
        key, seen = (model, kind), min(1.0, abs(tokens - offsets.total) / estimated)
        if key not in self._errors:
            make_room(self._errors, _MODELS)
        before = self._errors.get(key, _DEFAULT_ERROR)
        self._errors[key] = before + _GAIN * (seen - before)

    def record(self, block_hash: BlockHash, tokens: int) -> None:
        """Record the tokens from the start of a prompt to the end of a block."""
        self._prefixes.record(block_hash, tokens)

    def record_at_most(self, block_hash: BlockHash, tokens: int) -> None:
        """Record a length that a cache served, which may have held more, or lost some."""
        self._prefixes.record_at_most(block_hash, tokens)

    def most(self, block_hash: BlockHash) -> int:
        """Return the greatest known length up to the end of a block; -1 if there is none."""
        return self._prefixes.most(block_hash)
