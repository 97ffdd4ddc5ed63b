"""The estimator of token counts of texts, which learns from servers' reports.

It learns bytes per token, by model and kind of text, from every prompt with a reported length. It
also learns the exact lengths of prefixes that were whole prompts once: the second turn of a
conversation starts with the first, whose tokens the server has counted.
"""

from typing import Final

from epp.model.learning.bounded import make_room
from epp.model.prompts.chain import Chain
from epp.model.prompts.known_prefix_lengths import KnownPrefixLengths
from epp.model.prompts.text_lengths import DEFAULT_RATES, Kind, kind_of, spread
from epp.model.prompts.token_offsets import TokenOffsets

_MIN_RATE: Final = 1.0
_MAX_RATE: Final = 16.0
"""Bytes per token; a report outside of these bounds counts as the nearer one."""
_GAIN: Final = 0.1
"""The weight of one report in the average of bytes per token."""
_MIN_BYTES: Final = 512
"""Shorter texts, in bytes, do not teach bytes per token: most of them is chat template."""
_MODELS: Final = 1000
"""Models whose bytes per token are kept, at most."""
_DEFAULT_ERROR: Final = 0.25
"""The relative error of an estimate, if none was compared with a report."""
_MIN_ESTIMATED: Final = 64
"""Fewer estimated tokens do not teach an error: most of them are chat template."""
_MEDIA_TOKENS: Final = 1 << 20
"""The most tokens of the media in a prompt: as many as the longest contexts of models for video."""
_PREFIXES: Final = 1 << 17
"""Prefixes whose lengths are kept, at least."""


class TokenEstimator:
    """Estimates lengths of texts in tokens; those of token ids are known.

    `prefixes` holds the exact lengths.
    """

    def __init__(self) -> None:
        self._rates: dict[str, dict[Kind, float]] = {}
        self._errors: dict[str, dict[Kind, float]] = {}
        self.prefixes: Final = KnownPrefixLengths(_PREFIXES)

    def rate(self, model: str, kind: Kind) -> float:
        """Return the bytes per token of a model and kind of text.

        For a kind that was not seen yet, the model is assumed to differ from the default as much as
        for a kind that was seen.
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
        """Estimate the tokens of a prompt with the bytes `text`, of a `kind` as a whole.

        Text after a long prefix of known length is measured by it, if both are of the same kind.
        """
        if chain.exact:
            return TokenOffsets(chain.size, chain.ends, chain.size)
        known = self.prefixes.among(chain.hashes)
        size, tokens = (chain.ends[known[-1][0]], known[-1][1]) if known else (0, 0)
        rate = self._rate_after(model, text, kind, size, tokens)
        total = max(1, tokens + round((chain.size - size) / rate))
        return TokenOffsets(total, spread(chain.ends, known, rate), tokens)

    def known_offsets(self, chain: Chain) -> TokenOffsets:
        """Return the length in tokens of a text whose length up to the last block is known."""
        known = self.prefixes.among(chain.hashes)
        return TokenOffsets(known[-1][1], spread(chain.ends, known, 1.0))

    def _rate_after(self, model: str, text: bytes, kind: Kind, size: int, tokens: int) -> float:
        """Return the bytes per token of the text after `size` bytes with `tokens` tokens."""
        if not size:
            return self.rate(model, kind)
        if size < _MIN_BYTES or not tokens:
            return self.rate(model, kind_of(text, size))
        if len(text) - size < _MIN_BYTES:
            return size / tokens
        after = kind_of(text, size)
        return size / tokens if kind_of(text, 0, size) == after else self.rate(model, after)

    def learn(self, model: str, kind: Kind, size: int, tokens: int) -> None:
        """Learn that a text of `size` bytes was `tokens` tokens."""
        if size < _MIN_BYTES or tokens < 1:
            return
        seen = min(_MAX_RATE, max(_MIN_RATE, size / tokens))
        rates = self._rates.get(model)
        if rates is None:
            make_room(self._rates, _MODELS)
            rates = self._rates[model] = {}
        before = rates.get(kind, seen)
        rates[kind] = before + _GAIN * (seen - before)

    @staticmethod
    def believes(chain: Chain, tokens: int, kind: Kind) -> bool:
        """Return whether a prompt can have this many tokens, as reports may be wrong or forged.

        Media may have any number that a context has room for, and a short text has those of the
        chat template too.
        """
        if chain.multimodal or kind == "media":
            return tokens <= chain.size + _MEDIA_TOKENS
        if chain.exact:
            return tokens <= 2 * max(chain.size, _MIN_BYTES)
        least, most = chain.size / _MAX_RATE, max(chain.size, _MIN_BYTES) / _MIN_RATE
        return least <= tokens <= most

    def error(self, model: str, kind: Kind) -> float:
        """Return the relative error of the estimated part of a length."""
        errors = self._errors.get(model)
        return _DEFAULT_ERROR if errors is None else errors.get(kind, _DEFAULT_ERROR)

    def learn_error(self, model: str, kind: Kind, offsets: TokenOffsets, tokens: int) -> None:
        """Compare an estimate with the `tokens` that a server has counted."""
        estimated = offsets.total - offsets.known
        if estimated < _MIN_ESTIMATED:
            return
        seen = min(1.0, abs(tokens - offsets.total) / estimated)
        errors = self._errors.get(model)
        if errors is None:
            make_room(self._errors, _MODELS)
            errors = self._errors[model] = {}
        before = errors.get(kind, _DEFAULT_ERROR)
        errors[kind] = before + _GAIN * (seen - before)
