"""The mirror of KV events, against what prompts are then found to have cached."""

import tracemalloc
from array import array
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.caches.block_pool.pool import BlockPool
from epp.model.caches.kv_event_mirror import KvEventMirror
from epp.model.caches.offload import OffloadedCache
from epp.model.caches.reported_blocks import ReportedBlocks
from epp.model.kv_changes import BlocksCleared, BlocksRemoved, BlocksStored, Cleared, Medium
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Prompt
from tests.protocol.growth import too_steep
from tests.strategies import SECRET

BLOCK = 16
CAPACITY = 100_000
HASHER = BlockHasher(SECRET, BLOCK)


def packed(tokens):
    return array("I", tokens).tobytes()


def stored(names, tokens, parent=None, size=BLOCK, **more):
    return BlocksStored(hashes=list(names), parent=parent, tokens=packed(tokens), size=size, **more)


def removed(*names, **more):
    return BlocksRemoved(list(names), **more)


class Followed:
    """An engine's blocks as a mirror put them into a cache, `pool` where nothing else is said."""

    def __init__(self, *changes, hasher=HASHER, cache=None, **more):
        self.hasher = hasher
        self.pool = BlockPool(CAPACITY, BLOCK) if cache is None else cache
        self.reported = ReportedBlocks(self.pool)
        self.mirror = KvEventMirror(hasher, **more)
        self.apply(*changes)

    def apply(self, *changes):
        for change in changes:
            self.mirror.apply(change, self.reported)
        return self

    @property
    def blocks(self):
        return self.mirror._blocks

    def chain(self, tokens, model="", salt=""):
        return self.hasher.chain(Prompt(packed(tokens), exact=True), model, salt).hashes

    def cached(self, tokens, model="", salt=""):
        """How many blocks of a prompt are found."""
        return self.pool.match(self.chain(tokens, model, salt))


PROMPT = list(range(1000, 1000 + 10 * BLOCK))


def test_a_prompt_is_found_that_the_engine_stored_bit_by_bit():
    half = 4 * BLOCK
    followed = Followed(stored([1, 2, 3, 4], PROMPT[:half]))
    assert followed.cached(PROMPT) == 4
    followed.apply(*(stored([n + 1], PROMPT[n * BLOCK : (n + 1) * BLOCK], n) for n in range(4, 10)))
    assert followed.cached(PROMPT) == 10
    assert len(followed.blocks) == 10
    assert sorted(followed.blocks.hashes()) == sorted(followed.pool.hashes())


def test_what_branches_off_continues_its_parent():
    followed = Followed(stored([1, 2], PROMPT[: 2 * BLOCK]))
    other = [*PROMPT[:BLOCK], *range(BLOCK)]
    followed.apply(stored([7], other[BLOCK:], parent=1))
    assert followed.cached(PROMPT) == 2
    assert followed.cached(other) == 2


@pytest.mark.parametrize("size", [1, 2, 5, 8, 16, 24, 32, 48, 160])
def test_blocks_of_both_sides_may_differ_in_size(size):
    names = range(1, len(PROMPT) // size + 1)
    at_once = Followed(stored(names, PROMPT[: len(names) * size], size=size))
    one_by_one = Followed()
    for name in names:
        tokens = PROMPT[(name - 1) * size : name * size]
        one_by_one.apply(stored([name], tokens, name - 1 or None, size))
    expected = len(names) * size // BLOCK
    assert at_once.cached(PROMPT) == one_by_one.cached(PROMPT) == expected
    assert sorted(at_once.blocks.hashes()) == sorted(at_once.pool.hashes())
    at_once.apply(removed(names[-1]))
    assert at_once.cached(PROMPT) == (len(names) - 1) * size // BLOCK
    at_once.apply(removed(*names))
    assert (list(at_once.pool.hashes()), len(at_once.blocks)) == ([], 0)
    assert at_once.mirror.counts.unknown == 1


def test_models_and_salts_are_worlds_of_their_own():
    followed = Followed(
        stored([1], PROMPT[:BLOCK]),
        stored([2], PROMPT[:BLOCK], model="adapter"),
        stored([3, 4], PROMPT[: 2 * BLOCK], salt="pepper"),
    )
    assert followed.cached(PROMPT) == 1
    assert followed.cached(PROMPT, model="adapter") == 1
    assert followed.cached(PROMPT, salt="pepper") == 2
    assert followed.cached(PROMPT, model="adapter", salt="pepper") == 0
    followed.apply(stored([5], PROMPT[2 * BLOCK : 3 * BLOCK], parent=4))
    assert followed.cached(PROMPT, salt="pepper") == 3


def test_a_block_is_lost_with_its_last_copy():
    tokens = PROMPT[:BLOCK]
    followed = Followed(stored([1], tokens), stored([1], tokens), stored([1], tokens))
    for left in (1, 1, 0):
        followed.apply(removed(1))
        assert followed.cached(tokens) == left
    followed.apply(removed(1))
    assert followed.mirror.counts.unknown == 1


def test_copies_within_one_event_count():
    followed = Followed(stored([1, 2], PROMPT[: 2 * BLOCK]))
    followed.apply(stored([2, 3], PROMPT[BLOCK : 3 * BLOCK], parent=1), removed(2))
    assert followed.cached(PROMPT) == 3
    followed.apply(removed(2))
    assert followed.cached(PROMPT) == 1


def test_a_hole_ends_what_is_found():
    followed = Followed(stored([1, 2, 3], PROMPT[: 3 * BLOCK]), removed(2))
    assert followed.cached(PROMPT) == 1
    followed.apply(stored([2], PROMPT[BLOCK : 2 * BLOCK], parent=1))
    assert followed.cached(PROMPT) == 3


def test_what_has_no_known_parent_is_left_out_and_counted():
    followed = Followed(stored([5, 6], PROMPT[: 2 * BLOCK], parent=4))
    followed.apply(stored([7], PROMPT[2 * BLOCK : 3 * BLOCK], parent=6), removed(5))
    assert (followed.mirror.counts.lost, followed.mirror.counts.unknown) == (3, 1)
    assert list(followed.pool.hashes()) == []


def test_groups_with_a_window_are_not_followed():
    window = {"group": 1, "full": False}
    followed = Followed(
        stored([1, 2], PROMPT[: 2 * BLOCK], group=0),
        stored([1, 2], PROMPT[: 2 * BLOCK], **window),
        removed(1, group=1),
    )
    assert followed.cached(PROMPT) == 2
    followed.apply(removed(2, group=0), stored([2], PROMPT[:BLOCK], 1, **window))
    assert followed.cached(PROMPT) == 1
    assert (followed.mirror.counts.skipped, followed.mirror.counts.unknown) == (4, 0)
    followed.apply(BlocksCleared(), removed(1, group=1))
    assert (followed.mirror.counts.skipped, followed.mirror.counts.unknown) == (4, 1)


def test_a_hit_needs_every_full_group():
    tokens = PROMPT[: 2 * BLOCK]
    followed = Followed(stored([1, 2], tokens, group=0), stored([1, 2], tokens, group=1))
    followed.apply(removed(2, group=0))
    assert followed.cached(PROMPT) == 1
    followed.apply(stored([2], tokens[BLOCK:], 1, group=0))
    assert followed.cached(PROMPT) == 2
    followed.apply(removed(2, 1, group=1), removed(2, 1, group=0))
    assert (followed.cached(PROMPT), len(followed.blocks)) == (0, 0)


def test_the_tier_below_is_filled_by_what_is_moved_there():
    first = BlockPool(CAPACITY, BLOCK)
    cache = OffloadedCache(first, CAPACITY)
    lower = cache.offload_tier
    followed = Followed(stored([1, 2], PROMPT[: 2 * BLOCK]), cache=cache)
    # vLLM's own offloading names blocks only.
    followed.apply(stored([1, 2, 9], [], size=0, medium=Medium.CPU), removed(2, 1))
    chain = followed.chain(PROMPT)
    assert (first.match(chain), list(lower.hashes())) == (0, list(chain[:2]))
    followed.apply(stored([3], PROMPT[2 * BLOCK : 3 * BLOCK], 2))
    assert set(first.hashes()) == {chain[2]}
    followed.apply(removed(2, medium=Medium.CPU))
    assert list(lower.hashes()) == list(chain[:1])
    assert followed.mirror.counts.lost == 1


def test_without_a_tier_below_what_is_moved_there_is_skipped():
    followed = Followed(stored([1], PROMPT[:BLOCK]))
    followed.apply(
        stored([1], PROMPT[:BLOCK], medium=Medium.CPU),
        stored([1], PROMPT[:BLOCK], medium=Medium.OTHER),
        removed(1, medium=Medium.CPU),
    )
    assert followed.cached(PROMPT) == 1
    assert followed.mirror.counts.skipped == 3


def test_an_image_is_not_what_its_tokens_say():
    content = [b"", b"image-1", b""]
    followed = Followed(stored([1, 2, 3], PROMPT[: 3 * BLOCK], content=content))
    assert followed.cached(PROMPT) == 1
    assert len(followed.pool.hashes()) == 3  # the space is taken all the same
    other = stored([1, 12, 13], PROMPT[: 3 * BLOCK], content=[b"", b"image-2", b""])
    assert len(followed.apply(other).pool.hashes()) == 5
    followed.apply(stored([4], PROMPT[3 * BLOCK : 4 * BLOCK], 3), removed(2, 3, 4))
    assert len(followed.pool.hashes()) == 3


@pytest.mark.parametrize("reason", list(Cleared))
def test_what_is_cleared_is_gone(reason):
    followed = Followed(stored([1, 2], PROMPT[: 2 * BLOCK]))
    predicted = followed.chain(range(BLOCK))
    followed.pool.store(predicted, [BLOCK])
    followed.apply(BlocksCleared(reason))
    assert (followed.cached(PROMPT), len(followed.blocks)) == (0, 0)
    # After a gap, what is believed for other reasons may well be true.
    assert followed.pool.match(predicted) == (reason is Cleared.GAP)
    followed.apply(stored([2], PROMPT[BLOCK : 2 * BLOCK], 1))
    assert followed.mirror.counts.lost == 1


def test_a_hash_that_has_another_content_takes_its_place():
    followed = Followed(stored([1], PROMPT[:BLOCK]))
    followed.apply(stored([1], range(BLOCK)))
    assert (followed.cached(PROMPT), followed.cached(range(BLOCK))) == (0, 1)
    assert followed.mirror.counts.renamed == 1


def test_few_blocks_are_dropped_at_a_time_where_their_size_grows():
    """Of blocks of one token a cache has room for thousands of times as many as of long ones."""
    small = 20_000
    followed = Followed(stored(range(small), range(small), size=1))
    followed.mirror.room = 4096
    for number, name in enumerate(range(small, small + 2_000), start=1):
        followed.apply(stored([name], [7] * 4096, size=4096))
        assert followed.mirror.counts.dropped <= 16 * number
    assert len(followed.blocks) <= 128  # compiled, two in each of its 64 shards


def test_the_oldest_blocks_are_dropped_beyond_the_limit():
    followed = Followed(most_blocks=64)
    for number in range(1000):
        followed.apply(stored([number + 1], [number] * BLOCK))
        assert len(followed.blocks) <= 64
    assert sorted(followed.blocks.hashes()) == sorted(followed.pool.hashes())
    assert followed.cached([999] * BLOCK) == 1
    assert followed.mirror.counts.dropped + len(followed.blocks) == 1000


def test_a_block_takes_bounded_memory():
    followed, count = Followed(), 5000
    tracemalloc.start()
    for start in range(0, count, 100):
        names = range(start * 2**32 + 1, start * 2**32 + 101)
        followed.apply(stored(names, [start] * 100 * BLOCK))
    followed.pool = BlockPool(1, BLOCK)
    followed.reported = ReportedBlocks(followed.pool)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / count < 400


def test_generated_blocks_get_hashes_from_events():
    followed = Followed()
    chain = followed.chain(PROMPT)
    lease = followed.pool.allocate(chain[:2], [BLOCK] * 2, BLOCK, 2)
    assert lease is not None
    followed.apply(stored([1, 2], PROMPT[: 2 * BLOCK]))
    followed.pool.grow(lease, 5 * BLOCK)
    followed.apply(stored([3, 4], PROMPT[2 * BLOCK : 4 * BLOCK], 2))
    free = followed.pool.free
    followed.pool.release(lease)
    assert followed.cached(PROMPT) == 4
    assert free == CAPACITY - 5 * BLOCK


class Engine:
    """An engine's cache in the plainest way: copies of blocks, each a whole prefix."""

    def __init__(self, size):
        self.size = size
        self.copies: Counter[tuple[int, ...]] = Counter()

    def name(self, path):
        return hash(path) & (1 << 64) - 1

    def store(self, tokens):
        """Store what is not held of a sequence, from its first missing block on, and the last."""
        size = self.size
        paths = [tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)]
        held = next((n for n, path in enumerate(paths) if not self.copies[path]), len(paths) - 1)
        fresh = paths[max(0, held) :]
        if not fresh:
            return None
        self.copies.update(fresh)
        parent = self.name(paths[held - 1]) if held else None
        return stored(map(self.name, fresh), fresh[-1][held * size :], parent, size)

    def remove(self, number):
        held = sorted(self.copies.elements())
        if not held:
            return None
        path = held[number % len(held)]
        self.copies[path] -= 1
        return removed(self.name(path))

    def do(self, step):
        """Store a sequence, remove a block by its number, or clear all, and return the event."""
        if isinstance(step, Cleared):
            self.copies.clear()
            return BlocksCleared(step)
        return self.remove(step) if isinstance(step, int) else self.store(step)

    def expected(self, followed):
        """Every block of ours that ends within a block that is held."""
        found = set()
        for path in +self.copies:
            chain = followed.chain(path)
            before = (len(path) - self.size) // followed.hasher.token_block
            found.update(chain[before:])
        return found


SEQUENCES = st.lists(st.integers(0, 1), min_size=1, max_size=20)
SIZES = [(2, 2), (2, 4), (2, 6), (4, 1), (4, 2), (3, 2), (2, 3), (8, 1), (8, 3), (7, 2)]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SIZES),
    st.lists(
        st.one_of(SEQUENCES, SEQUENCES, st.integers(0, 100), st.sampled_from(Cleared)), max_size=25
    ),
)
def test_the_pool_holds_what_the_engine_holds(sizes, steps):
    ours, theirs = sizes
    engine, followed = Engine(theirs), Followed(hasher=BlockHasher(SECRET, ours))
    for step in steps:
        change = engine.do(step)
        if change is None:
            continue
        lost = followed.mirror.counts.lost
        followed.apply(change)
        purged(followed)
        assert followed.mirror.counts.lost == lost
        assert set(followed.pool.hashes()) == engine.expected(followed)
        assert len(followed.blocks) == len(+engine.copies)


@pytest.mark.parametrize("groups", [1, 4, 1_000])
def test_blocks_are_removed_in_linear_time(groups):
    """However many of the engine's blocks fill one of ours, and in however many groups."""

    def work(data):
        count = len(data) // 8
        followed = Followed(stored(range(-3 * count, 0), [1] * (3 * count * BLOCK)))
        for name in range(count):
            group = name % groups
            followed.apply(stored([name], [0] * (2 * BLOCK), size=2 * BLOCK, group=group))
        for group in range(min(groups, 20)):
            followed.apply(removed(*range(group, count, groups), group=group))

    assert not too_steep(work, bytes)


def test_groups_beyond_those_of_any_model_are_not_followed():
    followed = Followed(*(stored([name], PROMPT[:BLOCK], group=name) for name in range(1_000)))
    assert followed.mirror.counts.stored < 100 < followed.mirror.counts.skipped
    followed.apply(*(removed(name, group=name) for name in range(1_000)))
    assert len(followed.blocks) == 0
    assert followed.cached(PROMPT) == 0


MANY = 20_000


def many(first=0, count=MANY):
    """So many blocks that what clears them takes steps."""
    return stored(range(first, first + count), [0] * count * BLOCK)


def spacious(*changes):
    return Followed(*changes, cache=BlockPool(1 << 20, BLOCK))


def left(followed):
    return len(followed.pool.hashes())


def purged(followed):
    """Take all out that leaves; how many were left before each step."""
    steps = [left(followed)]
    while followed.mirror.is_leaving:
        followed.mirror.purge(followed.reported)
        steps.append(left(followed))
    return steps


@pytest.mark.parametrize("reason", list(Cleared))
def test_what_is_cleared_leaves_a_part_at_a_time(reason):
    followed = spacious(many(), BlocksCleared(reason))
    assert len(followed.blocks) == 0
    steps = purged(followed)
    assert steps[-1] == 0
    assert max(before - after for before, after in pairwise([MANY, *steps])) < 6_000


@pytest.mark.parametrize("reason", list(Cleared))
def test_what_is_stored_while_others_leave_stays(reason):
    followed = spacious(many(), BlocksCleared(reason), stored([-1, -2], PROMPT[: 2 * BLOCK]))
    followed.apply(many(count=3))  # the same again, by the same names
    purged(followed)
    assert followed.cached(PROMPT) == 2
    assert left(followed) == 5
    followed.apply(BlocksCleared(reason))
    assert purged(followed)[-1] == 0


@pytest.mark.parametrize("reason", list(Cleared))
def test_what_is_removed_while_others_leave_is_gone(reason):
    followed = spacious(many(), BlocksCleared(reason), stored([-1, -2], PROMPT[: 2 * BLOCK]))
    followed.apply(removed(-2))
    purged(followed)
    assert (followed.cached(PROMPT), left(followed)) == (1, 1)


def test_changes_take_out_what_leaves():
    followed = spacious(many(), BlocksCleared(Cleared.GAP))
    followed.apply(*[stored([-1], PROMPT[:BLOCK])] * 40)
    assert not followed.mirror.is_leaving
    assert left(followed) == 1


def test_a_mirror_that_ends_leaves_the_cache_as_it_is():
    followed = spacious(many())
    followed.mirror.forget()
    assert len(followed.blocks) == 0
    steps = purged(followed)
    assert len(steps) > 4
    assert set(steps) == {MANY}


@given(st.lists(st.sampled_from([*Cleared, "store", "store", "remove"]), max_size=12))
def test_what_leaves_and_what_comes_add_up_in_any_order(steps):
    """A step at a time the same is left as if all left at once."""
    slow, fast = spacious(), spacious()
    for number, step in enumerate(steps):
        if isinstance(step, Cleared):
            change = BlocksCleared(step)
        elif step == "store":
            names = range(number * 100, number * 100 + 300)
            change = stored(names, [each // 16 for each in names for _ in range(BLOCK)])
        else:
            change = removed(*range(number * 100, number * 100 + 50))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("epp.model.caches.kv_event_mirror._PURGED", 40)
            patch.setattr("epp.model.caches.engine_blocks.steps.STEP", 40)
            slow.apply(change)
        fast.apply(change)
        while fast.mirror.is_leaving:
            fast.mirror.purge(fast.reported)
    purged(slow)
    assert set(slow.pool.hashes()) == set(fast.pool.hashes())


def test_no_more_is_followed_than_the_cache_has_room_for():
    followed = Followed()
    followed.mirror.room = 10_000 * BLOCK
    for first in range(0, 100_000, 100):
        followed.apply(many(first, 100))
    assert 15_000 < len(followed.blocks) <= 20_000
    assert followed.mirror.counts.dropped + len(followed.blocks) == 100_000


def test_names_that_share_a_shard_are_bounded_too():
    followed = Followed(most_blocks=6_400)
    for first in range(0, 4_000_000, 64 * 100):
        followed.apply(stored(range(first, first + 64 * 100, 64), [0] * 100 * BLOCK))
    assert len(followed.blocks) <= 6_400


def test_blocks_of_an_engine_are_bounded_by_their_tokens():
    followed = Followed()
    followed.mirror.room = CAPACITY
    tokens = 20_000
    for name in range(300):
        followed.apply(stored([name], [name] * tokens, size=tokens))
    assert len(followed.blocks) <= 64
    assert followed.cached([299] * tokens) > 0
