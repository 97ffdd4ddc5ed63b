"""The block pool beside vLLM's own, under the same requests: they agree to the block.

What requests generate has names at once in the engine. Here it gets them at once too, or as late as
possible: when a prompt looks for it, by then perhaps released, or evicted in part.
"""

import importlib
from array import array
from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from epp.model.caches.contract import Lease
from epp.model.learning.trust import DOUBT, PredictionTrust
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.hashing import BlockHash
from epp.model.request import TOKEN_BYTES, Prompt
from tests.native.built import loaded

pytestmark = pytest.mark.vllm
POOLS = [each.BlockPool for each in loaded("epp.model.caches.block_pool.pool")]
SECRET = b"pool"
EXAMPLES = 600
STEPS = 50
MUST_BE_SEEN = (
    "hit",
    "refused",
    "too large",
    "preempted",
    "resumed with hits",
    "named late",
    "gone before it was named",
    "next turn hits",
)


class Run:
    """One request in both: `computed` tokens are in the cache, `known` full blocks of them."""

    def __init__(self, request, lease, block):
        self.request = request
        self.block = block
        self.readmitted(lease)

    def readmitted(self, lease):
        self.lease = lease
        self.computed = len(self.tokens)
        self.known = self.computed // self.block

    @property
    def tokens(self):
        return self.request.all_token_ids


class PoolBesideVllm(RuleBasedStateMachine):
    """Few blocks, prompts that begin alike, answers that repeat what others asked."""

    engine_class: ClassVar[Any] = None
    pool_class: ClassVar[Any] = None
    seen: ClassVar[Counter[str]] = Counter()

    @initialize(block=st.integers(1, 32), blocks=st.integers(1, 14), promptly=st.booleans())
    def start(self, block, blocks, promptly):
        self.block, self.capacity, self.promptly = block, blocks, promptly
        self.hasher = BlockHasher(SECRET, block)
        self.engine = self.engine_class(blocks, block)
        self.pool = self.pool_class(blocks * block, block)
        self.said: list[list[int]] = [[]]  # all that was ever computed
        self.running: list[Run] = []
        self.waiting: list[Run] = []
        self.unnamed: list[tuple[Lease, BlockHash]] = []
        self.number = 0

    def chain(self, tokens):
        data = b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in tokens)
        return self.hasher.chain(Prompt(data, exact=True), "model", "")

    def let_in(self, tokens):
        """Let a prompt into the pool as `epp.model.pods.sequence` does."""
        chain, size = self.chain(tokens), self.block
        blank = size if len(tokens) % size else 0
        return self.pool.allocate(chain.hashes, [size] * len(chain.hashes), blank, chain.lookup)

    def name_what(self, tokens):
        """Name what a prompt looks for; what nobody looks for keeps waiting for its name."""
        wanted = set(self.chain(tokens).hashes)
        self.name([pair for pair in self.unnamed if pair[1] in wanted])
        self.unnamed = [pair for pair in self.unnamed if pair[1] not in wanted]

    def name(self, pairs):
        for lease, each in pairs:
            named = self.pool.assign_hashes(lease, [each], [self.block])
            self.seen["named late" if lease.released else "named"] += named
            self.seen["gone before it was named"] += not named

    @rule(
        base=st.integers(0),
        cut=st.integers(0, 4),
        ragged=st.integers(0, 3),
        token=st.integers(0, 1),
        more=st.integers(0, 3),
    )
    def prompt(self, base, cut, ragged, token, more):
        said = self.said[-1 - base % len(self.said)]
        kept = len(said) if cut == 4 else cut * self.block + ragged
        tokens = [*said[:kept], *[token] * (more * self.block // 2)] or [token]
        self.name_what(tokens)
        request = self.engine.begin(f"request {self.number}", tokens)
        self.number += 1
        hit, lease = self.engine.admit(request), self.let_in(tokens)
        if lease is not None and not lease.tokens and not lease.reserved_tokens:
            assert hit is None
            assert len(tokens) > self.capacity * self.block
            self.seen["too large"] += 1
            return
        assert (hit is None) == (lease is None)
        self.seen["refused"] += lease is None
        if lease is not None:
            assert lease.cached * self.block == hit
            self.seen["hit"] += hit > 0
            self.running.append(Run(request, lease, self.block))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0), token=st.integers(0, 1), steps=st.integers(1, 48))
    def decode(self, which, token, steps):
        run = self.running[which % len(self.running)]
        done = 0
        while done < steps and self.engine.decode(run.request, token):
            done += 1
        assert self.follow(run, run.computed + done)
        if done < steps:
            self.make_room(run)

    def follow(self, run, computed):
        """Let the pool grow, and note in which order the engine named what is full now."""
        if not self.pool.grow(run.lease, computed):
            return False
        run.computed = computed
        full = computed // self.block
        hashes = self.chain(run.tokens).hashes[run.known : full]
        self.unnamed += [(run.lease, each) for each in hashes]
        run.known = full
        if self.promptly:
            self.name(self.unnamed)
            self.unnamed = []
        return True

    def make_room(self, run):
        """Preempt whoever was let in last until one step fits, as the scheduler does."""
        assert not self.follow(run, run.computed + 1)
        while run in self.running:
            victim = self.running.pop()
            self.seen["preempted"] += 1
            self.leave(victim)
            self.waiting.insert(0, victim)
            if run in self.running and self.engine.decode(run.request, 0):
                assert self.follow(run, run.computed + 1)
                return

    def leave(self, run):
        self.said.append(list(run.tokens[: run.computed + 1]))
        self.engine.free_up(run.request)
        self.pool.release(run.lease)

    @precondition(lambda self: self.waiting)
    @rule()
    def resume(self):
        run = self.waiting[0]
        self.name_what(run.tokens)
        hit, lease = self.engine.admit(run.request), self.let_in(run.tokens)
        if lease is not None and not lease.tokens and not lease.reserved_tokens:
            assert hit is None
            self.waiting.remove(run)
            return
        assert (hit is None) == (lease is None)
        if lease is not None:
            assert lease.cached * self.block == hit
            self.waiting.remove(run)
            self.seen["resumed with hits"] += hit > 0
            run.readmitted(lease)
            self.running.append(run)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0))
    def finish(self, which):
        """End a request: it is done, or its client went away."""
        run = self.running.pop(which % len(self.running))
        self.leave(run)

    @precondition(lambda self: len(self.said) > 1)
    @rule(base=st.integers(0))
    def ask(self, base):
        """Look at what a next turn would hit."""
        tokens = [*self.said[base % len(self.said)], 9]
        self.name_what(tokens)
        chain = self.chain(tokens)
        found = self.pool.match(chain.hashes[: chain.lookup])
        assert found * self.block == self.engine.hits(tokens)
        self.seen["next turn hits"] += found > 0

    @invariant()
    def as_much_is_free(self):
        if hasattr(self, "pool"):
            assert self.pool.free == self.engine.free * self.block

    @invariant()
    def as_much_is_cached(self):
        if hasattr(self, "pool"):
            assert len(self.pool) == self.engine.cached

    @invariant()
    def as_much_can_be_found(self):
        if hasattr(self, "pool") and not self.unnamed:
            assert len(self.pool.hashes()) == self.engine.findable

    @invariant()
    def no_hole_ever(self):
        assert not hasattr(self, "pool") or self.pool.closed


@pytest.mark.parametrize("pool", POOLS, ids=lambda kind: kind.__module__)
def test_the_pool_does_what_vllm_does(pool):
    PoolBesideVllm.engine_class = importlib.import_module("e2e.pool_oracle").Engine
    PoolBesideVllm.pool_class = pool
    seen = PoolBesideVllm.seen
    seen.clear()
    use = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
    run_state_machine_as_test(PoolBesideVllm, settings=use)
    missing = {each: seen[each] for each in MUST_BE_SEEN if seen[each] < EXAMPLES // 20}
    assert not missing, dict(seen)


def test_the_block_that_eagle_drops_of_each_hit_costs_no_trust():
    """Hits are a block short of the pool's: all of most short ones, and next to nothing of long."""
    block = 16
    engine = importlib.import_module("e2e.pool_oracle").Engine(4000, block, eagle=True)
    pool, hasher, trust = (
        POOLS[0](4000 * block, block),
        BlockHasher(SECRET, block),
        PredictionTrust(),
    )
    short_by = Counter[int]()
    for turn in range(200):
        words = 1500 if turn % 4 == 3 else 20  # what requests of a kind begin with
        tokens = [words] * words + [2000 + turn] * 30
        data = array("I", tokens).tobytes()
        chain = hasher.chain(Prompt(data, exact=True), "m", "")
        request = engine.begin(str(turn), tokens)
        hit = engine.admit(request)
        sizes = [block] * len(chain.hashes)
        lease = pool.allocate(chain.hashes, sizes, len(tokens) % block, chain.lookup)
        predicted = lease.cached * block
        short_by[predicted - hit] += 1
        trust.judge(predicted, hit, block)
        engine.free_up(request)
        pool.release(lease)
    assert short_by == {0: 2, block: 198}  # but for the first of each kind
    assert trust.trust > DOUBT
