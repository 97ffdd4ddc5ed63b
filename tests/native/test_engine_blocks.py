"""An engine's blocks, compiled and not: what both say alike, and what the compiled ones take."""

import tracemalloc
from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from epp.model.kv_changes import BlocksStored
from tests.native.built import loaded, needs
from tests.protocol.growth import too_steep

MODULE = "epp.model.caches.engine_blocks.blocks"
KINDS = [each.EngineBlocks for each in loaded(MODULE)]
needs_native = needs(MODULE, "the compiled blocks of an engine")
SECRET = 0x1234_5678_9ABC_DEF0
BLOCK = 16
ROOT = 7
names = st.integers(0, 12)


def lists_of_names(most, least=0):
    """A draw each: a list of drawn names takes two for each."""
    drawn = st.binary(min_size=least, max_size=most)
    return drawn.map(lambda each: [byte % 13 for byte in each])


groups = st.integers(0, 2)


def stored(hashes, tokens, size, parent=None, content=()):
    packed = array("I", tokens).tobytes()
    return BlocksStored(list(hashes), parent, packed, size, content=content)


@pytest.fixture(params=KINDS, ids=lambda each: each.__module__)
def kind(request):
    return request.param


class NativeBesideSource(RuleBasedStateMachine):
    """Few names, so that they come again as copies, with other contents and in circles."""

    @initialize(block=st.integers(1, 6))
    def start(self, block):
        self.both = [kind(block, SECRET) for kind in KINDS]

    def ask(self, name, *arguments):
        """Ask both for the same, and return what they said; lists of our blocks in any order."""
        said = [
            tuple(sorted(each) if isinstance(each, list | tuple) else each for each in answer)
            if isinstance(answer := getattr(blocks, name)(*arguments), tuple)
            else answer
            for blocks in self.both
        ]
        assert said[0] == said[-1]

    @rule(
        hashes=lists_of_names(5, 1),
        size=st.integers(1, 14),
        parent=st.none() | names,
        token=st.integers(0, 2),
        group=groups,
    )
    def store(self, hashes, size, parent, token, group):
        tokens = [token + each // 3 for each in range(len(hashes) * size)]
        self.ask("store", stored(hashes, tokens, size, parent), ROOT, group)

    @rule(
        content=st.lists(st.sampled_from([b"", b"image", b"other"]), min_size=1, max_size=4),
        size=st.integers(1, 7),
        parent=st.none() | names,
        group=groups,
    )
    def store_images(self, content, size, parent, group):
        tokens = [1] * len(content) * size
        change = stored(range(len(content)), tokens, size, parent, content)
        self.ask("store", change, ROOT, group)

    @rule(name=names, copies=st.sampled_from([3, 300]), group=groups)
    def store_again(self, name, copies, group):
        self.ask("copy", [name] * copies, group)

    @rule(hashes=lists_of_names(8), times=st.sampled_from([1, 1, 299]), group=groups)
    def remove(self, hashes, times, group):
        self.ask("remove", hashes * times, group)

    @rule(name=names, group=groups)
    def look(self, name, group):
        self.ask("ours_at", name, group)

    @invariant()
    def know_the_same(self):
        known = [(len(blocks), sorted(blocks.hashes())) for blocks in self.both]
        assert known[0] == known[-1]

    def teardown(self):
        drained = [sorted(own for some in blocks.drain() for own in some) for blocks in self.both]
        assert drained[0] == drained[-1]


@needs_native
def test_the_extension_says_what_the_source_says():
    run_state_machine_as_test(
        NativeBesideSource,
        settings=settings(max_examples=200, stateful_step_count=40, deadline=None),
    )


def named(count):
    """Hashes, which are no objects until some of them are taken."""
    return array("Q", [each * 0x9E37_79B9_7F4A_7C15 % 2**64 for each in range(1, count + 1)])


def filled(kind, hashes, size):
    """Some sequences of 4,096 tokens, stored bit by bit."""
    blocks = kind(BLOCK, SECRET)
    per = 4_096 // size
    for start in range(0, len(hashes), 32):
        some = hashes[start : start + 32]
        parent = hashes[start - 1] if start % per else None
        tokens = [start // per] * (len(some) * size)
        assert blocks.store(stored(some, tokens, size, parent), ROOT, 0) is not None
    return blocks


@needs_native
@pytest.mark.parametrize(
    ("size", "most"), [(1, 35), (2, 40), (8, 60), (BLOCK, 30), (2 * BLOCK, 80)]
)
def test_a_block_takes_few_bytes(size, most):
    """Names that are listed are objects of 32 bytes, which whoever reads events lets go."""
    count = 100_000
    hashes = named(count)
    filled(KINDS[0], hashes[:64], size)
    tracemalloc.start()
    blocks = filled(KINDS[0], hashes, size)
    used, _ = tracemalloc.get_traced_memory()
    assert len(blocks) == count
    assert used / count <= most
    for _ in blocks.drain():
        pass
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 50_000


def test_what_comes_and_goes_leaves_no_room_behind(kind):
    hashes = list(named(20_000))
    blocks = filled(kind, hashes, 1)
    gone, unknown, ours = blocks.remove(hashes[:-16], 0)
    assert (gone, unknown, len(ours)) == (19_984, 0, 1_249)
    assert len(blocks.hashes()) == 1
    for _ in range(50):
        change = stored(hashes[:1_000], [3] * 1_000, 1)
        assert blocks.store(change, ROOT, 0) is not None
        assert blocks.remove(hashes[:1_000], 0)[:2] == (1_000, 0)
    assert len(blocks) == 16


@pytest.mark.parametrize("sizes", [(1, 1), (3, 1), (1, 5), (7, 16)])
def test_a_block_that_has_lost_a_parent_has_no_place(kind, sizes):
    first, second = sizes
    blocks = kind(BLOCK, SECRET)
    assert blocks.store(stored([1, 2], [5] * 2 * first, first), ROOT, 0) is not None
    assert blocks.store(stored([3], [5] * second, second, parent=2), ROOT, 0) is not None
    blocks.remove([1], 0)
    assert blocks.store(stored([4], [5] * second, second, parent=2), ROOT, 0) is None
    assert len(blocks) == 2


def test_blocks_that_follow_each_other_in_a_circle_have_no_place(kind):
    blocks = kind(BLOCK, SECRET)
    for name, parent in ((1, None), (2, 1), (1, 2)):
        assert blocks.store(stored([name], [5], 1, parent), ROOT, 0) is not None
    assert blocks.store(stored([3], [5], 1, parent=2), ROOT, 0) is None


def test_a_block_of_ours_is_given_up_with_the_last_that_fills_it(kind):
    blocks = kind(BLOCK, SECRET)
    size = BLOCK + 2
    (ours, _, _), (again, _, _) = (
        blocks.store(stored([name], [5] * BLOCK + [name] * 2, size), ROOT, 0) for name in (1, 2)
    )
    assert ours == again
    assert blocks.remove([1], 0) == (1, 0, [])
    assert blocks.remove([2], 0) == (1, 0, list(ours))


def test_other_content_under_a_name_leaves_what_another_fills(kind):
    blocks = kind(BLOCK, SECRET)
    size = BLOCK + 1
    for name in (1, 2):
        blocks.store(stored([name], [5] * BLOCK + [name], size), ROOT, 0)
    _, outdated, renamed = blocks.store(stored([1], [6] * size, size), ROOT, 0)
    assert (list(outdated), renamed) == ([], 1)
    _, outdated, renamed = blocks.store(stored([2], [6] * size, size), ROOT, 0)
    assert (len(outdated), renamed) == (1, 1)


@pytest.mark.parametrize("step", [1, 1 << 12, 1 << 32, 1 << 48])
def test_names_that_would_fall_side_by_side_do_not(kind, step):
    def work(data):
        hashes = [each * step % 2**64 for each in range(len(data))]
        blocks = kind(BLOCK, SECRET)
        for start in range(0, len(hashes), 128):
            some = hashes[start : start + 128]
            blocks.store(stored(some, [1] * len(some), 1), ROOT, 0)
        blocks.remove(hashes, 0)

    assert not too_steep(work, bytes)


def test_the_oldest_are_dropped_first(kind):
    blocks = kind(BLOCK, SECRET)
    hashes = list(named(12_800))
    for start in range(0, len(hashes), 128):
        some = hashes[start : start + 128]
        blocks.store(stored(some, [start] * 128, 1), ROOT, 1)
        dropped, _ = blocks.drop_oldest(some, 6_400)
        assert dropped <= 16 * len(some)
    assert len(blocks) <= 6_400
    newest = hashes[-3_200:]
    assert blocks.remove(newest, 1)[:2] == (len(newest), 0)
    assert blocks.remove(hashes[:3_000], 1)[:2] == (0, 3_000)


def test_tokens_are_as_many_as_blocks_have(kind):
    with pytest.raises(ValueError, match="tokens"):
        kind(BLOCK).store(stored([1, 2], [1] * 3, 1), ROOT, 0)
