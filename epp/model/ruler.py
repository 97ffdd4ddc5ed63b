"""How many tokens a prompt's bytes are: learned per model from what servers report."""

from functools import lru_cache

from cachetools import LRUCache

from epp.model.blocks import BLOCK_ENDS, Chain

DEFAULT_BYTES_PER_TOKEN = 4.0
_EXACT_BYTES_PER_TOKEN = 4.0
_LEAST, _MOST = 1.0, 16.0
_GAIN = 0.1
_LEAST_SIZE = 512
_STEPS_PER_BYTE = 20
_MODELS = 1000


class Ruler:
    """Block boundaries in tokens at one rate: `sizes[i]` of block i, `ends[i]` from the start."""

    __slots__ = ("bytes_per_token", "ends", "sizes")

    def __init__(self, bytes_per_token: float) -> None:
        self.bytes_per_token = bytes_per_token
        self.ends = tuple(int(end / bytes_per_token) for end in BLOCK_ENDS)
        starts = (0, *self.ends)
        self.sizes = tuple(end - start for start, end in zip(starts, self.ends, strict=False))

    def tokens(self, size: int) -> int:
        """Return how many tokens `size` bytes are, at least one."""
        return max(1, round(size / self.bytes_per_token))

    def covered(self, blocks: int) -> int:
        """Return how many tokens the first `blocks` blocks are."""
        return self.ends[blocks - 1] if blocks else 0


@lru_cache(maxsize=64)
def _ruler(steps: int) -> Ruler:
    return Ruler(steps / _STEPS_PER_BYTE)


class Rulers:
    """The rulers in use, one a model; token ids need no learning."""

    def __init__(self) -> None:
        self._rates: LRUCache[str, float] = LRUCache(_MODELS)

    def of(self, model: str, chain: Chain) -> Ruler:
        """Return the ruler for a prompt of a model."""
        if chain.exact:
            return _ruler(round(_EXACT_BYTES_PER_TOKEN * _STEPS_PER_BYTE))
        rate = self._rates.get(model, DEFAULT_BYTES_PER_TOKEN)
        return _ruler(round(rate * _STEPS_PER_BYTE))

    def learn(self, model: str, size: int, tokens: int) -> None:
        """Take in that a text of `size` bytes was `tokens` tokens.

        Short ones are passed over: a chat template is most of what they are.
        """
        if size < _LEAST_SIZE:
            return
        seen = min(_MOST, max(_LEAST, size / tokens))
        before = self._rates.get(model)
        self._rates[model] = seen if before is None else before + _GAIN * (seen - before)
