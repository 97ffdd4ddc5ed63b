"""Extents beside single blocks: the same are found, evicted and free, in the same order."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.replay.engines.pool import HeldBlocks, KVBlocks
from epp.replay.traffic.calls import Run, block_keys

USABLE = 24


class SingleBlocks:
    """vLLM's rules said of one block after the other, each a list of its key and its holders."""

    def __init__(self):
        self.queue = [[None, 0] for _ in range(USABLE)]
        self.registered = []  # in the order of registration

    def find(self, key):
        return next((block for block in self.registered if block[0] == key), None)

    def run(self, keys):
        found = []
        for key in keys:
            if (block := self.find(key)) is None:
                break
            found.append(block)
        return found

    def admit(self, keys, blocks):
        run = self.run(keys)
        if blocks - len(run) > len(self.queue) - sum(not block[1] for block in run):
            return None
        for block in run:
            block[1] += 1
        self.queue = [block for block in self.queue if not block[1]]
        return run

    def allocate(self):
        block = self.queue.pop(0)
        if block[0] is not None:
            self.registered = [each for each in self.registered if each is not block]
        block[:] = [None, 1]
        return block

    def register(self, block, key):
        block[0] = key
        self.registered.append(block)

    def free(self, blocks):
        for block in reversed(blocks):
            block[1] -= 1
        over = [block for block in reversed(blocks) if not block[1]]
        nameless = [block for block in over if block[0] is None]
        self.queue = [*nameless, *self.queue, *(block for block in over if block[0] is not None)]


class Both:
    """Requests of chains that branch, in both."""

    def __init__(self, seed):
        self.rng = random.Random(seed)  # noqa: S311
        self.pool, self.single = KVBlocks(USABLE), SingleBlocks()
        self.running = []
        self.chains = [[Run(token, 9)] for token in (1, 2)]

    def chain(self):
        """Draw a chain that goes on with a part of another, or repeats it."""
        stem = self.rng.choice(self.chains)
        upto = self.rng.randint(1, len(stem))
        chain = [*stem[:upto], Run(self.rng.randint(1, 3) * 10 + upto, self.rng.randint(1, 5))]
        self.chains = [*self.chains, chain][-5:]
        return chain

    def begin(self):
        keys = block_keys(self.chain(), 1)
        need = self.rng.randint(1, len(keys))
        limit = self.rng.randint(0, need)
        held = HeldBlocks()
        held.keys = keys
        run = self.pool.cached_run(keys, limit)
        hits = run[-1][1] if run else 0
        blocks = self.single.admit(keys[:limit], need)
        admitted = self.pool.admit(held, run, need - hits)
        assert admitted == (blocks is not None)
        if admitted:
            assert hits == len(blocks)
            self.running.append((held, blocks))

    def grow(self):
        held, blocks = self.rng.choice(self.running)
        count = min(self.rng.randint(1, 4), len(self.single.queue))
        full = min(len(held.keys), held.count + count - self.rng.randint(0, 1))
        self.pool.allocate(held, count)
        blocks += [self.single.allocate() for _ in range(count)]
        self.pool.register(held, max(full, held.registered))
        for block, key in zip(blocks[:full], held.keys, strict=False):
            if block[0] is None:
                self.single.register(block, key)

    def end(self):
        held, blocks = self.running.pop(self.rng.randrange(len(self.running)))
        self.pool.free(held)
        self.single.free(blocks)

    def compare(self):
        assert list(self.pool.free_order()) == [block[0] for block in self.single.queue]
        assert self.pool.free_count == len(self.single.queue)
        for held, blocks in self.running:
            assert (held.count, held.registered) == (
                len(blocks),
                sum(block[0] is not None for block in blocks),
            )


@given(st.integers(0, 1 << 32))
def test_extents_do_what_single_blocks_do(seed):
    both = Both(seed)
    for _ in range(100):
        both.rng.choice([both.begin, both.grow, both.end] if both.running else [both.begin])()
        both.compare()
    while both.running:
        both.end()
        both.compare()
    assert both.pool.free_count == USABLE


def test_without_caching_the_last_block_freed_is_the_first_taken():
    pool = KVBlocks(4, caching=False)
    held = HeldBlocks()
    assert pool.admit(held, [], 3)
    pool.allocate(held, 3)
    assert (pool.free_count, held.count) == (1, 3)
    pool.free(held)
    assert list(pool.free_order()) == [None] * 4


@pytest.mark.parametrize(("blocks", "fits"), [(2, True), (3, False)])
def test_what_is_found_free_counts_against_what_is_free(blocks, fits):
    pool = KVBlocks(4)
    first, second = HeldBlocks(), HeldBlocks()
    first.keys = second.keys = block_keys([Run(1, 8)], 1)
    pool.allocate(first, 2)
    pool.register(first, 2)
    pool.free(first)
    # Four are free, two of which the second will hold.
    assert pool.admit(second, pool.cached_run(second.keys, 8), blocks) == fits
    assert pool.free_count == (2 if fits else 4)
