"""Pools of equal blocks, and names of blocks that tell their place in a tree of chains."""

from itertools import chain, product

from hypothesis import strategies as st

from tests.native.built import loaded, source_of

BLOCK = 16
KINDS = [each.BlockPool for each in loaded("epp.model.caches.block_pool.pool")]
kind = KINDS[0]
"""What pools here are; tests that are to run on both use the fixture `pool_kind`."""


def pool_with(capacity, block):
    return kind(capacity, block)


def pools_of(blocks, bs=BLOCK):
    """A pool of each kind, to be asked the same."""
    return [each(blocks * bs, bs) for each in KINDS]


def reference_with(capacity, block):
    return source_of("epp.model.caches.block_pool.pool").BlockPool(capacity, block)


def reference_of(blocks):
    return reference_with(blocks * BLOCK, BLOCK)


def pool_of(blocks, bs=BLOCK):
    return pool_with(blocks * bs, bs)


def allocate(pool, tokens, names, bs=BLOCK):
    """Admit a prompt of `tokens` tokens whose full blocks are called `names`."""
    full = tokens // bs
    partial = bs if tokens % bs else 0
    return pool.allocate(names[:full], [bs] * full, partial, max(0, tokens - 1) // bs)


def stored(pool):
    return list(pool.take_stored())


def evicted(pool):
    return list(pool.take_evicted())


def name_of(path):
    """Name a block by all that stands before it, as a chained hash does."""
    number = 1
    for step in path:
        number = number * 3 + step + 1
    return number


def names_of(path):
    return [name_of(path[:end]) for end in range(1, len(path) + 1)]


def parent_of(name):
    """Return the name of the block before one, None for the first of a chain."""
    return name // 3 if name > 5 else None


def paths_of(most, least=0):
    """Paths of `least` to `most` steps, each length as often: a draw each, a list needs many."""
    lengths = range(least, most + 1)
    paths = (list(product((0, 1), repeat=each)) * 2 ** (most - each) for each in lengths)
    return st.sampled_from(list(chain.from_iterable(paths)))


def numbers(count, most):
    """`count` numbers up to `most`, all in one draw."""
    drawn = st.binary(min_size=count, max_size=count)
    return drawn.map(lambda each: [byte % (most + 1) for byte in each])


paths = paths_of(7)
