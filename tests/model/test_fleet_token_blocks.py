"""The fleet: where token ids are cut, so that the blocks of all engines end there."""

import pytest

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.kv_changes import BlocksStored, CacheChanged, CacheFeedUp, EngineHash
from tests.model.invariants import check_invariants
from tests.model.rig import Rig

LARGE = {"block_size": 128, "num_blocks": 1001}
IDS = list(range(1285))


def join(rig):
    rig.add("new", "10.0.0.8")
    rig.add("silent", "10.0.0.9")
    rig.report("new", **LARGE)


def leave(rig):
    join(rig)
    rig.apply(EndpointRemoved(EndpointId("default/silent")))


def leave_with_small_blocks(rig):
    rig.add("small", "10.0.0.8")
    rig.apply(EndpointRemoved(EndpointId("default/small")))


@pytest.mark.parametrize("happens", [join, leave, leave_with_small_blocks])
@pytest.mark.parametrize("token_block", [None, 16, 64, 128])
def test_engines_that_come_and_go_leave_the_cut_of_token_ids(token_block, happens):
    rig = Rig(token_block=token_block)
    for name in ("pod-0", "pod-1"):
        rig.report(name, **LARGE)
    rig.serve("pod-0", "r1", IDS)
    assert rig.quote("r2", IDS).chains[0].ends[0] == (token_block or 128)
    happens(rig)
    assert rig.cached(IDS)["pod-0"] == 1280


@pytest.mark.parametrize(
    ("token_block", "blocks", "cut"),
    [
        (None, (128,), 128),
        (None, (128, 64), 64),
        (None, (64, 128), 64),
        (None, (8, 16), 16),
        (64, (128, 64), 64),
        (64, (128, 32), 32),
        (16, (528, 32), 16),
        (16, (24, 24), 24),
    ],
)
def test_token_ids_are_cut_so_that_all_engines_blocks_end_there(token_block, blocks, cut):
    rig = Rig(2, token_block=token_block)
    for number, size in enumerate(blocks):
        rig.report(f"pod-{number}", block_size=size, num_blocks=101)
    assert rig.quote("r1", IDS).chains[0].ends[0] == cut


def test_what_an_engine_stores_is_followed_in_the_cut_of_token_ids():
    """Its first event comes before its first page, by which they are cut anew."""
    rig, pod = Rig(1, token_block=64), EndpointId("default/pod-0")

    def store(first):
        ids = list(range(first, first + 320))
        data = b"".join(each.to_bytes(4, "little") for each in ids)
        hashes = [EngineHash(first + each) for each in range(10)]
        rig.apply(CacheChanged(pod, [BlocksStored(hashes, None, data, 32, model="m")]))
        return [*ids, 1]

    rig.apply(CacheFeedUp(pod, complete=True))
    store(10**6)
    rig.report("pod-0", block_size=32, num_blocks=1001)
    stored = [store(10**5 * each) for each in range(1, 4)]
    assert [rig.cached(each, target_model="m")["pod-0"] for each in stored] == [320] * 3
    (stats,) = rig.fleet.cache_stats()
    assert stats.filled == 3 * 320
    check_invariants(rig.fleet)
