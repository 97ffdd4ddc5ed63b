"""The block pool: tables for vLLM's rules, then invariants under any sequence of calls."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from model_server.simulator.hashes import BlockHash
from model_server.simulator.pool import BlockPool


def name(number: int) -> BlockHash:
    return BlockHash(b"%d" % number)


def cached(pool: BlockPool, *hashes: int) -> list[int]:
    """Allocate one block for each hash and register it."""
    blocks = pool.allocate(len(hashes))
    for block, number in zip(blocks, hashes, strict=True):
        pool.register(block, name(number))
    return blocks


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(4)
    assert pool.allocate(3) == [1, 2, 3]
    assert pool.usage == 1.0
    with pytest.raises(ValueError, match="1 blocks wanted, 0 free"):
        pool.allocate(1)


def test_a_pool_needs_more_than_the_null_block():
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)


def test_freed_in_reverse_with_the_unhashed_block_first_in_line():
    pool = BlockPool(6)
    chain = cached(pool, 10, 11, 12)
    partial = pool.allocate(1)
    pool.free(chain + partial)
    # 5 was never used; the partial block goes before it, the chain after it, tail first.
    assert pool.free_order() == [4, 5, 3, 2, 1]


def test_the_tail_is_evicted_before_the_head():
    pool = BlockPool(4)
    pool.free(cached(pool, 10, 11, 12))
    hashes = [name(10), name(11), name(12)]
    hits = []
    for _ in range(3):
        hits.append(len(pool.longest_run(hashes, 3)))
        pool.allocate(1)
    assert hits == [3, 2, 1]
    assert pool.longest_run(hashes, 3) == []


def test_a_touched_block_is_not_evicted_and_returns_to_the_tail_when_freed():
    pool = BlockPool(4)
    pool.free(cached(pool, 10))
    pool.free(cached(pool, 20))
    assert pool.free_order() == [3, 1, 2]
    hit = pool.longest_run([name(10)], 1)
    assert pool.free_among(hit) == 1
    pool.touch(hit)
    assert pool.free_order() == [3, 2]
    pool.touch(hit)
    pool.free(hit)
    assert pool.free_order() == [3, 2]
    pool.free(hit)
    assert pool.free_order() == [3, 2, 1]


def test_copies_of_a_hash_are_kept_and_the_first_one_answers():
    pool = BlockPool(4)
    first, second = cached(pool, 10), cached(pool, 10)
    assert pool.longest_run([name(10)], 1) == first
    pool.free(first)
    pool.free(second)
    pool.allocate(2)  # block 3, then the first copy
    assert pool.longest_run([name(10)], 1) == second


def test_a_run_ends_at_the_first_hole_and_at_the_limit():
    pool = BlockPool(6)
    blocks = cached(pool, 10, 11, 13)
    hashes = [name(10), name(11), name(12), name(13)]
    assert pool.longest_run(hashes, 4) == blocks[:2]
    assert pool.longest_run(hashes, 1) == blocks[:1]


def test_reset_only_when_nothing_is_referenced():
    pool = BlockPool(3)
    held = cached(pool, 10)
    assert not pool.reset()
    assert pool.longest_run([name(10)], 1) == held
    pool.free(held)
    assert pool.reset()
    assert pool.longest_run([name(10)], 1) == []
    pool.allocate(2)


class PoolMachine(RuleBasedStateMachine):
    """Requests hold lists of blocks; a second, naive account of references is kept beside."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.held: list[list[int]] = []

    def references(self, block: int) -> int:
        return sum(blocks.count(block) for blocks in self.held)

    @rule(chain=st.lists(st.integers(0, 5), min_size=1, max_size=4), full=st.integers(0, 4))
    def admit(self, chain, full):
        hashes = [name(number) for number in chain]
        hits = list(dict.fromkeys(self.pool.longest_run(hashes, len(hashes) - 1)))
        need = len(chain) - len(hits)
        if need > self.pool.free_count - self.pool.free_among(hits):
            return
        held_before = {block for blocks in self.held for block in blocks} | set(hits)
        self.pool.touch(hits)
        taken = self.pool.allocate(need)
        assert not held_before & set(taken), "a referenced block was evicted"
        for block, block_hash in list(zip(taken, hashes[len(hits) :], strict=True))[:full]:
            self.pool.register(block, block_hash)
        self.held.append(hits + taken)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data):
        self.pool.free(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule()
    def reset(self):
        assert self.pool.reset() == (not self.held)

    @invariant()
    def blocks_are_free_or_referenced(self):
        used = {block for blocks in self.held for block in blocks}
        assert len(used) + self.pool.free_count == self.pool.num_blocks - 1
        assert set(self.pool.free_order()) == set(range(1, 12)) - used
        assert [self.pool.references(b) for b in range(12)] == [
            self.references(b) for b in range(12)
        ]

    @invariant()
    def every_hash_finds_a_block_that_has_it(self):
        for number in range(6):
            known = [b for b in range(12) if self.pool.hash_of(b) == name(number)]
            found = self.pool.longest_run([name(number)], 1)
            assert bool(found) == bool(known)
            assert set(found) <= set(known)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
