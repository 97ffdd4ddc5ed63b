"""Digests of caches: equal for equal contents in any order, and about how far others are apart."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId
from epp.protocol.replicas.digests import (
    BUCKETS,
    blocks_apart,
    changes,
    differing,
    digest,
    owner_of,
    too_different,
    within,
)
from epp.protocol.replicas.epochs import cache_epoch
from tests.strategies import endpoint

blocks = st.lists(st.integers(0, (1 << 64) - 1), max_size=60, unique=True)


@given(blocks)
def test_a_digest_has_sums_that_are_little_endian_on_each_host(hashes):
    low = [sum(each % (1 << 32) for each in hashes if each >> 54 == at) for at in range(BUCKETS)]
    told = b"".join((each % (1 << 32)).to_bytes(4, "little") for each in low)
    assert digest(hashes) == told


@given(blocks, st.randoms(use_true_random=False))
def test_order_does_not_matter(hashes, chance):
    shuffled = list(hashes)
    chance.shuffle(shuffled)
    assert differing(digest(hashes), digest(shuffled)) == []


@given(blocks, blocks)
def test_what_differs_is_found_in_its_bucket_and_mended(ours, theirs):
    buckets = differing(digest(ours), digest(theirs))
    apart = {each >> 54 for each in set(ours) ^ set(theirs)}
    assert set(buckets) <= apart
    sizes = list(range(len(theirs)))
    told, tokens = within(theirs, sizes, buckets)
    assert [sizes[theirs.index(each)] for each in told] == list(tokens)
    come, tokens, gone = changes(ours, told, tokens, buckets)
    mended = (set(ours) | set(come)) - set(gone)
    assert differing(digest(mended), digest(theirs)) == []
    assert len(come) == len(tokens)


@pytest.mark.parametrize("apart", [0, 10, 100, 1000, 3000])
def test_how_many_blocks_differ_is_estimated(apart):
    chance = Random(apart)  # noqa: S311 (no secrets)
    ours = [chance.getrandbits(64) for _ in range(30_000)]
    theirs = ours[apart:]
    estimated = blocks_apart(len(differing(digest(ours), digest(theirs))))
    assert estimated == pytest.approx(apart, rel=0.1, abs=2)


def test_a_few_blocks_and_a_hundredth_are_left_alone():
    assert not too_different(10, 0)
    assert too_different(70, 0)
    assert not too_different(70, 35_000)
    assert too_different(400, 35_000)
    assert too_different(BUCKETS, 1 << 40)


@pytest.mark.parametrize("wrong", [b"", b"1234", bytes(4 * BUCKETS + 4)])
def test_what_is_not_a_digest_is_refused(wrong):
    with pytest.raises(ValueError, match="1024 sums"):
        differing(digest([]), wrong)


@given(st.sets(st.integers(0, 1 << 56), min_size=2, max_size=8), st.data())
def test_an_owner_that_goes_moves_its_own_endpoints_alone(replicas, data):
    names = [EndpointId(f"default/pod-{number}") for number in range(20)]
    gone = data.draw(st.sampled_from(sorted(replicas)))
    for name in names:
        owner = owner_of(name, replicas)
        assert owner in replicas
        if owner != gone:
            assert owner_of(name, replicas - {gone}) == owner


def test_endpoints_are_shared_evenly_about():
    names = [EndpointId(f"default/pod-{number}") for number in range(1000)]
    counts = [sum(owner_of(name, range(4)) == each for name in names) for each in range(4)]
    assert min(counts) > 200


def test_another_start_of_an_engine_has_another_epoch():
    made = [
        cache_epoch(endpoint(uid=uid), started)
        for uid in ("a", "b")
        for started in (None, 1000.0, 1000.5)
    ]
    assert len(set(made)) == 6
