"""Blocks that an engine reports while prompts come as text: found, and no burden on the model."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.model.caches.block_pool.pool import BlockPool
from epp.model.caches.kv_event_mirror import KvEventMirror
from epp.model.caches.reported_blocks import ReportedBlocks
from epp.model.kv_changes import BlocksCleared, BlocksStored, Cleared, EngineHash
from epp.model.prompts.block_hasher import BlockHasher
from tests.model.invariants import check_invariants
from tests.strategies import SECRET, prompt

BLOCK = 16
BLOCKS = 10
TEXT = [101, 102, 103, 104]
"""Blocks of a prompt of text; smaller numbers are those of token ids."""
STORED = BlocksStored(
    hashes=[EngineHash(1), EngineHash(2)],
    parent=None,
    tokens=prompt(list(range(2 * BLOCK))).data,
    size=BLOCK,
)


def sizes(hashes):
    return [BLOCK] * len(hashes)


class Rig:
    """A pool of ten blocks, what is reported of it, and what an index would have."""

    def __init__(self):
        self.pool = BlockPool(BLOCKS * BLOCK, BLOCK)
        self.reported = ReportedBlocks(self.pool)
        self.index = set()

    def serve(self, *hashes):
        """Serve a prompt: of text, if its blocks are."""
        if hashes[0] > 100:
            self.reported.expect_text()
        lease = self.pool.allocate(list(hashes), sizes(hashes), 0, len(hashes))
        if lease is not None:
            self.pool.release(lease)
        self.update()

    def store(self, *hashes):
        self.reported.store(list(hashes), sizes(hashes))
        self.update()

    def discard(self, *hashes):
        self.reported.discard(list(hashes))
        self.update()

    def update(self):
        """Do with changes as the scheduler does."""
        stored, evicted = self.pool.take_stored(), self.pool.take_evicted()
        if self.reported.changing:
            stored, evicted = self.reported.amend(stored, evicted)
        self.index = self.index.difference(evicted).union(stored)
        check_invariants(self.reported)
        assert self.index == {*self.pool.hashes(), *self.reported.aside}

    @property
    def aside(self):
        return list(self.reported.aside)


@pytest.fixture
def rig():
    return Rig()


def test_without_text_the_cache_takes_in_what_is_reported(rig):
    rig.store(1, 2)
    rig.discard(2)
    assert (list(rig.pool.hashes()), rig.aside, rig.reported.changing) == ([1], [], False)


def test_what_the_engine_stores_for_text_is_found_and_takes_no_space(rig):
    rig.serve(*TEXT)
    rig.store(1, 2, 3, 4)
    rig.serve(*range(105, 111))  # the rest of the pool
    assert rig.pool.match(TEXT) == len(TEXT)
    assert rig.index == {*TEXT, *range(105, 111), 1, 2, 3, 4}


def test_what_the_cache_has_already_does_not_stand_aside(rig):
    rig.serve(1, 2)
    rig.serve(*TEXT)
    rig.store(1, 2, 3)
    rig.store(7, 2, 8)
    assert rig.aside == [3, 7, 8]


def test_what_the_engine_evicts_stands_aside_no_longer(rig):
    rig.serve(*TEXT)
    rig.store(1, 2, 3)
    rig.discard(3, 2)
    assert rig.index == {*TEXT, 1}


def test_a_prompt_of_token_ids_brings_blocks_into_the_cache(rig):
    rig.serve(*TEXT)
    rig.store(1, 2, 3)
    rig.serve(1, 2)
    assert (rig.aside, rig.pool.match([1, 2])) == ([3], 2)
    rig.discard(2)
    assert rig.index == {*TEXT, 1, 3}


def test_what_the_cache_evicts_for_text_is_found_while_the_engine_holds_it(rig):
    rig.serve(1, 2, 3, 4)
    rig.store(1, 2, 3)
    rig.serve(*range(101, 111))
    assert rig.aside == [3, 2, 1]  # and of 4 the engine never spoke
    rig.discard(3)
    assert sorted(rig.aside) == [1, 2]


def test_nothing_more_stands_aside_after_as_much_as_the_cache_holds(rig):
    rig.serve(*TEXT)
    rig.store(*range(1, BLOCKS))
    assert rig.pool.match([BLOCKS]) == 0
    rig.store(BLOCKS)
    rig.store(20)
    assert (rig.aside, rig.pool.match([20])) == ([*range(1, BLOCKS + 1)], 1)
    rig.discard(*range(1, BLOCKS + 1))
    assert not rig.reported.changing


def test_text_that_no_report_confirms_is_evicted_by_the_rules_of_the_pool(rig):
    for first in range(101, 1101, 5):
        rig.serve(*range(first, first + 5))
        rig.store(1, 2, 3, 4, 5)
        rig.discard(5, 4, 3, 2, 1)
    assert (len(rig.pool), rig.aside) == (BLOCKS, [])


def test_to_save_memory_the_last_to_come_go_first(rig):
    rig.serve(*TEXT)
    rig.store(1, 2, 3)
    assert rig.reported.coarsen(2) == 2
    rig.update()
    assert rig.aside == [1]
    assert rig.reported.coarsen(9) == 1
    rig.update()
    assert rig.index == set(TEXT)


def test_when_reports_end_the_cache_is_all_there_is(rig):
    rig.serve(1, *range(2, 5))
    rig.serve(*TEXT)
    rig.store(1, 7)
    rig.reported.clear()
    rig.update()
    rig.serve(*range(105, 111))
    assert rig.index == {*TEXT, *range(105, 111)}


@pytest.mark.parametrize("reason", [Cleared.ENGINE, Cleared.RESTART])
def test_an_engine_that_starts_over_holds_neither_text_nor_tokens(rig, reason):
    mirror = KvEventMirror(BlockHasher(SECRET, BLOCK))
    rig.serve(*TEXT)
    mirror.apply(STORED, rig.reported)
    assert len(rig.aside) == 2
    mirror.apply(BlocksCleared(reason), rig.reported)
    rig.update()
    assert rig.index == set()


def test_a_gap_in_the_events_leaves_text(rig):
    mirror = KvEventMirror(BlockHasher(SECRET, BLOCK))
    rig.serve(*TEXT)
    mirror.apply(STORED, rig.reported)
    mirror.apply(BlocksCleared(Cleared.GAP), rig.reported)
    rig.update()
    assert rig.index == set(TEXT)


chains = st.tuples(st.sampled_from((0, 20, 100, 120)), st.integers(1, 6))


class InAnyOrder(RuleBasedStateMachine):
    """Whatever comes: the index has what the pool or the engine holds, and the pool its bound."""

    def __init__(self):
        super().__init__()
        self.rig = Rig()
        self.engine = set()

    @rule(chain=chains)
    def serve(self, chain):
        first, length = chain
        self.rig.serve(*range(first + 1, first + 1 + length))

    @rule(first=st.integers(1, 26), length=st.integers(1, 4))
    def store(self, first, length):
        self.engine.update(range(first, first + length))
        self.rig.store(*range(first, first + length))

    @precondition(lambda self: self.engine)
    @rule(data=st.data())
    def discard(self, data):
        gone = data.draw(st.sampled_from(sorted(self.engine)))
        self.engine.remove(gone)
        self.rig.discard(gone)

    @rule(blocks=st.integers(0, 4))
    def coarsen(self, blocks):
        self.rig.reported.coarsen(blocks)
        self.rig.update()

    @invariant()
    def what_stands_aside_is_held(self):
        assert self.engine.issuperset(self.rig.aside)
        assert len(self.rig.pool) <= BLOCKS


TestInAnyOrder = InAnyOrder.TestCase
TestInAnyOrder.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
