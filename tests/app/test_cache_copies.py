"""What one replica does about caches as a whole, by what it knows of the others."""

import asyncio
import itertools
from hashlib import blake2b
from typing import Any

import pytest

from epp.app.replicas import copies
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.kv_changes import CacheCleared, CacheCopied, CacheFeedUp
from epp.model.prefix_index.index import HASH_BYTES, HELD_BYTES
from epp.model.prompts.hashing import BlockHash
from epp.protocol.replicas.chains import written_sizes, written_words
from epp.protocol.replicas.digests import BUCKETS, digest, owner_of
from epp.protocol.replicas.facts import BucketsQuery, BucketsReply, DigestFact
from epp.protocol.replicas.peers import Peer
from tests.app.replica_rig import Started, compare, peers, serve_many, settled, two
from tests.protocol.replicas.pair import held
from tests.tasks import until

POD, OTHER_POD, GONE = map(EndpointId, ("default/pod-0", "default/pod-1", "default/gone"))
MANY = [
    BlockHash(int.from_bytes(blake2b(b"%d" % each, digest_size=8).digest())) for each in range(1000)
]
OWNING = {"present": True, "settled": True, "full": False}


def alone(index_bytes=None, **peer):
    """A replica that is not started, and one that it knows, which would own a pod before it."""
    rig = Started() if index_bytes is None else Started(index_bytes=index_bytes)
    own = rig.replicas._writer.own
    number = next(each for each in itertools.count(1) if owner_of(POD, [own, each]) == each)
    known = rig.replicas.reader.peers[number] = Peer(number)
    for name, value in peer.items():
        setattr(known, name, value)
    return rig, known


def full():
    """A replica that forgets blocks for want of memory, and one that it knows."""
    rig, known = alone(100 * (HELD_BYTES + HASH_BYTES), **OWNING)
    number = itertools.count()
    while not rig.fleet.full:
        serve_many(rig, 1, seed=f"{next(number)}x")
    return rig, known


@pytest.mark.parametrize(
    ("here", "there", "owns"),
    [
        ({"settled": True}, {}, False),
        ({"settled": True}, {"settled": False}, True),
        ({"settled": True}, {"settled": None}, True),
        ({"settled": True}, {"present": False}, True),
        ({"settled": True}, {"full": True}, True),
        ({"settled": False}, {"present": False}, False),
        ({"settled": True, "full": True}, {}, False),
        ({"settled": True, "full": True}, {"full": True}, False),
        ({"settled": True, "full": True}, {"full": True, "settled": False}, True),
        ({"settled": True, "full": True}, {"full": True, "present": False}, True),
    ],
    ids=repr,
)
async def test_an_endpoint_is_owned_by_one_that_knows_its_cache(here, there, owns):
    rig, _ = alone(**OWNING | there)
    for name, value in here.items():
        setattr(rig.replicas._writer, name, value)
    assert (rig.pod("pod-0") in list(rig.replicas.copies._own())) is owns


@pytest.mark.parametrize(("at_once", "sizes"), [(1, [1, 1]), (2, [2]), (3, [2])])
async def test_digests_are_sent_a_few_in_a_message(at_once, sizes, monkeypatch):
    rig, _ = alone()
    rig.replicas._writer.settled = True
    sent: list[list[DigestFact]] = []
    monkeypatch.setattr(copies, "_DIGESTS_AT_ONCE", at_once)
    monkeypatch.setattr(rig.replicas.copies, "_send", sent.append)
    await rig.replicas.copies.send_own_digests()
    assert [len(each) for each in sent] == sizes
    assert {fact.endpoint for each in sent for fact in each} == {POD, OTHER_POD}


async def test_what_was_asked_about_an_endpoint_that_is_gone_is_forgotten():
    rig, known = alone()
    kept, here = rig.replicas.copies, (known.number, POD)
    for each in (kept._asked, kept._reconciled):
        each.update({here: 0, (known.number, GONE): 0, (known.number + 1, POD): 0})
    await kept.send_own_digests()
    assert kept._asked == kept._reconciled == {here: 0}


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("owner", [None, False, True])
async def test_a_full_memory_is_compared_with_full_ones_alone(is_full, owner):
    rig, known = full() if is_full else alone(**OWNING)
    known.full, number = owner is True, known.number + (owner is None)
    kept, epoch = rig.replicas.copies, copies.epoch_now(rig.pod("pod-0"))
    ours = rig.pod("pod-0").scheduler.cache.hashes()
    await kept._compare(number, DigestFact(POD, epoch, digest(ours)))
    assert kept._asked == {}
    await kept._compare(number, DigestFact(POD, epoch, digest(MANY)))
    assert list(kept._asked) == ([(number, POD)] if owner or not is_full else [])
    assert kept.compared == {False: 1, True: 1}


@pytest.mark.parametrize(
    ("is_full", "known", "reconciled", "added", "asks"),
    [
        (False, True, None, False, True),
        (False, True, 1, False, True),
        (False, True, 2, False, False),
        (False, True, None, True, False),
        (False, False, None, False, False),
        (True, True, None, False, False),
    ],
)
async def test_one_that_missed_facts_asks_back(is_full, known, reconciled, added, asks):
    """Once: who adds what the other holds is not asked again."""
    rig, peer = full() if is_full else alone(**OWNING)
    peer.losses, number = 2, peer.number + (not known)
    kept, epoch = rig.replicas.copies, copies.epoch_now(rig.pod("pod-0"))
    if reconciled is not None:
        kept._reconciled[number, POD] = reconciled
    told: list[Any] = []

    def answer(to, facts):
        told.extend([to, *facts])
        return True

    kept._answer = answer
    await kept._send_buckets(number, BucketsQuery(POD, epoch, [1], added))
    reply = BucketsReply(POD, epoch, [1], told[-1].hashes, told[-1].sizes, asks or added)
    query = [number, BucketsQuery(POD, epoch, [1], added=True)] if asks else []
    assert told == [*query, number, reply]
    assert kept._asked == ({(number, POD): 2} if asks else {})


def told_of(pod, *, endpoint=POD):
    """Facts about a cache that cannot be used, and how many of them cannot be true."""
    epoch = copies.epoch_now(pod)
    yield DigestFact(endpoint, epoch, b"short")
    yield BucketsQuery(endpoint, epoch, [BUCKETS])
    yield BucketsQuery(endpoint, epoch, [1, BUCKETS])
    yield BucketsReply(endpoint, epoch, [1], b"", b"")


@pytest.mark.usefixtures("digests_when_they_are_wanted")
@pytest.mark.parametrize(("endpoint", "nonsense"), [(POD, 2), (GONE, 1)])
async def test_facts_about_caches_that_cannot_be_used_hold_up_nothing(endpoint, nonsense):
    async with two() as (one, other):
        await settled(one, other)
        (there,) = peers(other)
        facts = list(told_of(one.pod("pod-0"), endpoint=endpoint))
        for fact in facts:
            assert other.replicas._answer(there.number, [fact])
        name = 'warmpick_replica_dropped_total{reason="nonsense"}'
        await until(lambda: one.metrics()[name] == nonsense)
        assert not one.replicas.copies.busy
        await compare(one, other)


async def test_a_cache_that_its_engine_reports_is_compared_with_none():
    rig, known = alone(**OWNING)
    rig.apply(CacheFeedUp(POD, complete=True))
    kept, epoch = rig.replicas.copies, copies.epoch_now(rig.pod("pod-0"))
    await kept._compare(known.number, DigestFact(POD, epoch, digest(MANY)))
    assert not kept.compared
    assert not kept._asked


CHANGES = {
    "cleared": lambda rig: rig.apply(CacheCleared(POD)),
    "another cleared": lambda rig: rig.apply(CacheCleared(OTHER_POD)),
    "started again": lambda rig: rig.report("pod-0", started_at=2000.0),
    "removed": lambda rig: rig.apply(EndpointRemoved(POD)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before", "at the first", "later"])
async def test_what_changes_while_a_cache_is_copied_ends_that(when, change, monkeypatch):
    monkeypatch.setattr(copies, "_AT_ONCE", 100)
    rig, known = alone(**OWNING)
    rig.report("pod-0", started_at=1000.0)
    kept, epoch = rig.replicas.copies, copies.epoch_now(rig.pod("pod-0"))
    buckets, key = list(range(BUCKETS)), (known.number, POD)
    told = written_words(MANY), written_sizes([16] * len(MANY))
    kept._ask(known.number, BucketsQuery(POD, epoch, buckets, added=True))
    changes, loop = itertools.count(), asyncio.get_running_loop()

    def changed(*_):
        if next(changes) == (3 if when == "later" else 0):
            loop.call_soon(CHANGES[change], rig)

    if when == "before":
        CHANGES[change](rig)
    else:
        rig.fleet.subscribe((CacheCopied,), changed, "changes")
    kept.take(known.number, BucketsReply(POD, epoch, buckets, *told, added=True))
    (fact,) = [kept._waiting.get_nowait()]
    if when == "before" and change == "cleared":
        with pytest.raises(ValueError, match="not asked for"):
            await kept._handle(*fact)
    else:
        await kept._handle(*fact)
    assert not kept._asked
    whole = change == "another cleared"
    assert held(rig).get(POD, set()) == (set(MANY) if whole else set())
    assert (key in kept._reconciled) is (change != "cleared")
