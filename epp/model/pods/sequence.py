"""One prompt at one endpoint: in line there, or in its cache, and what it generated."""

from itertools import takewhile
from operator import eq

from epp.model.caches.contract import CacheModel
from epp.model.caches.lease import Lease
from epp.model.prompts.chain import Chain
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.request import RequestId


class SequenceState:
    """A prompt's blocks (`chain`), their tokens (`measure`), and what is held for it (`lease`).

    It waits while `lease` is None. `computed` counts its tokens, of prompt and output, that the
    engine has computed since.
    """

    __slots__ = ("cache", "chain", "computed", "lease", "offsets", "request")

    def __init__(
        self, request: RequestId, chain: Chain, offsets: TokenOffsets, cache: CacheModel
    ) -> None:
        self.request = request
        self.chain = chain
        self.offsets = offsets
        self.cache = cache
        self.lease: Lease | None = None
        self.computed = offsets.total

    def try_admit(self, block: int) -> bool:
        """Allocate the prompt if it fits; the engine gives out space in blocks of `block`."""
        chain, offsets = self.chain, self.offsets
        space = -(-offsets.total // block) * block
        blank = max(0, space - offsets.covered(len(chain.hashes)))
        self.lease = self.cache.admit(chain.hashes, offsets.sizes(), blank, chain.lookup)
        return self.lease is not None

    def settle(self, offsets: TokenOffsets) -> None:
        """Take in how long the prompt really is."""
        if offsets is self.offsets:
            return
        self.computed += offsets.total - self.offsets.total
        self.offsets = offsets
        if self.lease is not None:
            self.cache.correct_sizes(self.lease, offsets.sizes())

    def grow(self) -> bool:
        """Allocate what was computed; False where there is no space for it."""
        return self.lease is None or self.cache.grow(self.lease, self.computed)

    def common(self, other: "SequenceState") -> int:
        """Return how many tokens of the prompt another one starts with, in whole blocks."""
        pairs = zip(self.chain.hashes, other.chain.hashes, strict=False)
        return self.offsets.covered(sum(1 for _ in takewhile(lambda pair: eq(*pair), pairs)))

    def put_back(self) -> None:
        """Give up what is held, to wait again (vLLM's scheduler: preemption)."""
        if self.lease is not None:
            self.cache.release(self.lease)
            self.lease = None

    def end(self, *, revoked: bool) -> None:
        """Give up what is held for good; `revoked` where the engine never computed it."""
        if self.lease is None:
            return
        if revoked:
            self.cache.revoke(self.lease)
        else:
            self.cache.release(self.lease)
