"""One prompt at one endpoint, waiting or in its cache, with its output."""

from bisect import bisect_left
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.caches.contract import CacheModel, Lease
from epp.model.prompts.chain import Chain
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.request import RequestId


@mypyc_attr(free_list_len=1, acyclic=True)
class SequenceState:
    """A prompt's blocks (`chain`), their lengths (`offsets`) and what `cache` holds for it.

    It waits while `lease` is None. `computed` tokens of prompt and output were computed; the prompt
    counts as computed from the start.
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
        """Correct the prompt's lengths to `offsets`, once the server has counted its tokens."""
        if offsets is self.offsets:
            return
        self.computed += offsets.total - self.offsets.total
        self.offsets = offsets
        if self.lease is not None:
            self.cache.correct_sizes(self.lease, offsets.sizes())

    def common_blocks(self, other: "SequenceState", least: int) -> int:
        """Return how many blocks both prompts start with, or `least` if that is more."""
        mine, others = self.chain.hashes, other.chain.hashes
        shorter = min(len(mine), len(others))
        if least >= shorter or mine[least] != others[least]:
            return least
        # A hash is chained over all blocks before it.
        rest = range(least + 1, shorter)
        return least + 1 + bisect_left(rest, x=True, key=lambda at: mine[at] != others[at])

    def preempt(self) -> None:
        """Free all blocks, and wait again (vLLM `_preempt_request`)."""
        if self.lease is not None:
            self.cache.release(self.lease)
            self.lease = None

    def free(self, *, revoked: bool) -> None:
        """Free all blocks for good; `revoked` if the engine never computed them."""
        if self.lease is None:
            return
        if revoked:
            self.cache.revoke(self.lease)
        else:
            self.cache.release(self.lease)


@mypyc_attr(free_list_len=1, acyclic=True)
class Admission:
    """What a request holds at an endpoint: its `sequences`, one for each prompt, and its books.

    `met_idle` says whether its prefill measures the endpoint: no other prefill was queued, no
    request waited at the last report, its adapter did not lack a slot, and the cached part of the
    prompt was certain. `beside` are the seconds of decodes in the steps of its prefill.
    """

    def __init__(self, *, met_idle: bool) -> None:
        self.met_idle: Final = met_idle
        self.beside = 0.0
        self.sequences: Final[list[SequenceState]] = []
