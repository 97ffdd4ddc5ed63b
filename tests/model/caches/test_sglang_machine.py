"""SGLang's radix cache beside an oracle on token ids, under random use."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from epp.model.caches.sglang import RadixCache
from tests.model.caches.pool_rig import paths_of
from tests.model.caches.radix_oracle import KEYS, RadixOracle


def named(tokens, page, start=0):
    """Name whole pages of a sequence by all tokens up to their end."""
    return [tuple(tokens[:end]) for end in range(start + page, len(tokens) + 1, page)]


class RadixBesideOracle(RuleBasedStateMachine):
    """Token ids in the oracle, hashes in the cache: they hold and evict the same.

    Output is named at once, before or after its end. In two parts, the first may split a node
    that SGLang leaves whole.
    """

    requests = Bundle("requests")
    histories = Bundle("histories")
    tokens = paths_of(6)

    @initialize(
        target=histories,
        pages=st.integers(3, 16),
        page=st.sampled_from([1, 2, 4]),
        strategy=st.sampled_from(sorted(KEYS)),
    )
    def create(self, pages, page, strategy):
        self.page = page
        self.cache = RadixCache(pages * page, page, strategy)
        self.oracle = RadixOracle(pages * page, page, strategy)
        self.names = {}
        self.findable = set()
        return []

    def hashes(self, tokens, start=0):
        return [self.hash_of(path) for path in named(tokens, self.page, start)]

    def hash_of(self, path):
        return self.names.setdefault(path, len(self.names))

    @rule(target=requests, history=histories, more=tokens, last=st.integers(0, 1))
    def start(self, history, more, last):
        prompt = [*history, *more, last]
        page = self.page
        if -(-len(prompt) // page) * page > self.oracle.capacity:
            return multiple()
        hashes = self.hashes(prompt)
        blank = page if len(prompt) % page else 0
        lookup = (len(prompt) - 1) // page
        lease = self.cache.allocate(hashes, [page] * len(hashes), blank, lookup)
        request = self.oracle.start(prompt)
        assert (lease is None) == (request is None)
        if lease is None:
            return multiple()
        assert lease.cached * page == request.hit
        assert self.cache.grow(lease, len(prompt))
        return lease, request

    @rule(pair=requests, more=tokens)
    def decode(self, pair, more):
        lease, request = pair
        if request not in self.oracle.running:
            return
        for token in more:
            goes_on = self.oracle.decode(request, token)
            assert goes_on == self.cache.grow(
                lease, len(request.computed) if goes_on else len(request.computed) + 1
            )
            if not goes_on:
                return

    @rule(target=histories, pair=consumes(requests), early=st.booleans())
    def finish(self, pair, early):
        lease, request = pair
        self.oracle.finish(request)
        start = len(request.prompt) // self.page * self.page
        names = self.hashes(request.computed, start)
        sizes = [self.page] * len(names)
        cut = len(names) if early else 0
        assert self.cache.assign_hashes(lease, names[:cut], sizes) == cut
        self.cache.release(lease)
        assert self.cache.assign_hashes(lease, names[cut:], sizes) == len(names) - cut
        return request.prompt + request.output

    @invariant()
    def as_much_is_free(self):
        assert self.cache.free == self.oracle.available + self.oracle.evictable

    @invariant()
    def the_same_can_be_found(self):
        found = {self.hash_of(path) for path in self.oracle.sequences()}
        assert set(self.cache.hashes()) == found
        assert len(self.cache) == len(found)

    @invariant()
    def changes_add_up(self):
        self.findable -= set(self.cache.take_evicted())
        self.findable |= set(self.cache.take_stored())
        assert self.findable == set(self.cache.hashes())


TestRadixBesideOracle = RadixBesideOracle.TestCase
TestRadixBesideOracle.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
