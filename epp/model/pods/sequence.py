"""One prompt at one endpoint: waiting there or in its cache, with what it generated."""

from itertools import takewhile
from operator import eq
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.caches.contract import CacheModel, Lease
from epp.model.prompts.chain import Chain
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.request import RequestId


@mypyc_attr(free_list_len=1, acyclic=True)
class SequenceState:
    """A prompt's blocks (`chain`), their lengths (`offsets`) and what `cache` holds for it.

    It waits while `lease` is None. The engine has computed `computed` tokens of prompt and
    output; the prompt counts as computed from the start.
    """

    def __init__(
        self, request_id: RequestId, chain: Chain, offsets: TokenOffsets, cache: CacheModel
    ) -> None:
        self.request_id = request_id
        self.chain = chain
        self.offsets = offsets
        self.cache = cache
        self.lease: Lease | None = None
        self.computed = offsets.total

    def allocate(self, block: int) -> bool:
        """Allocate the prompt if it fits; the engine allocates whole blocks of `block` tokens."""
        chain, offsets = self.chain, self.offsets
        # vLLM `allocate_slots`: a last, partial block takes a whole one.
        space = -(-offsets.total // block) * block
        reserved = max(0, space - offsets.covered(len(chain.hashes)))
        self.lease = self.cache.allocate(chain.hashes, offsets.sizes(), reserved, chain.lookup)
        return self.lease is not None

    def grow(self) -> bool:
        """Allocate space for what was computed; return False if there is none."""
        return self.lease is None or self.cache.grow(self.lease, self.computed)

    def correct_lengths(self, offsets: TokenOffsets) -> None:
        """Correct the prompt's lengths by `offsets`: the server has counted its tokens."""
        if offsets is self.offsets:
            return
        self.computed += offsets.total - self.offsets.total
        self.offsets = offsets
        if self.lease is not None:
            self.cache.correct_sizes(self.lease, offsets.sizes())

    def common_tokens(self, other: "SequenceState") -> int:
        """Return how many tokens of the prompt another one starts with, in whole blocks."""
        pairs = zip(self.chain.hashes, other.chain.hashes, strict=False)
        return self.offsets.covered(sum(1 for _ in takewhile(lambda pair: eq(*pair), pairs)))

    def preempt(self) -> None:
        """Free what is held, to wait again (vLLM `_preempt_request`)."""
        if self.lease is not None:
            self.cache.release(self.lease)
            self.lease = None

    def free(self, *, revoked: bool) -> None:
        """Free what is held for good; `revoked` if the engine never computed it."""
        if self.lease is None:
            return
        if revoked:
            self.cache.revoke(self.lease)
        else:
            self.cache.release(self.lease)


@mypyc_attr(free_list_len=1, acyclic=True)
class Admission:
    """What a request holds at an endpoint: its `sequences`, one for each prompt, and its books.

    `met_idle` says whether nothing holds its prefill up, as far as is known: no other one, nothing
    that waited there at the last report, and no want of a slot for its adapter; nor is it in doubt
    how much of the prompt is cached. `beside` are the
    seconds of decodes in the steps of its prefill. `booked`: the endpoint's load counts it.
    """

    def __init__(self, *, met_idle: bool) -> None:
        self.met_idle: Final = met_idle
        self.beside = 0.0
        self.booked = False
        self.sequences: Final[list[SequenceState]] = []
