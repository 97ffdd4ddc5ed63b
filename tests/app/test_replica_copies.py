"""Caches as a whole: compared and mended between replicas, over real sockets."""

import itertools

import pytest

from epp.app.replicas import copies
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.kv_changes import CacheCleared, CacheCopied
from epp.model.prefix_index.index import HASH_BYTES, HELD_BYTES
from epp.protocol.replicas.chains import written_sizes, written_words
from epp.protocol.replicas.digests import owner_of
from epp.protocol.replicas.facts import BucketsQuery, BucketsReply, ContentsReply
from tests.app.replica_rig import (
    Started,
    compare,
    compared,
    heard,
    peers,
    serve_many,
    settled,
    started,
    two,
    unheard,
)
from tests.model.invariants import check_invariants
from tests.protocol.replicas.pair import held
from tests.tasks import until

pytestmark = pytest.mark.usefixtures("digests_when_they_are_wanted")


def without_room(rig):
    """Have there be no room for a long answer when it is told first."""
    copies_of, room = rig.replicas.copies, itertools.cycle([False, True])
    answer = copies_of._answer

    def answered_if_there_is_room(number, facts):
        is_long = isinstance(facts[0], BucketsReply | ContentsReply)
        return (not is_long or next(room)) and answer(number, facts)

    copies_of._answer = answered_if_there_is_room


async def test_what_finds_no_room_at_first_is_told_a_little_later():
    async with started() as one:
        serve_many(one)
        await until(lambda: one.replicas.warm)
        await settled(one)
        without_room(one)
        async with started(one.port) as fresh:
            one.meets(fresh)
            await until(lambda: fresh.replicas.warm)
            assert held(fresh) == held(one)
            await settled(one, fresh)
            without_room(fresh)
            unheard(one)
            serve_many(one, seed="lost", pod="pod-1")
            heard(one)
            await compare(one, fresh)
            await until(lambda: held(fresh) == held(one))


async def test_a_replica_that_takes_no_answers_holds_up_others_once(monkeypatch):
    async with started() as one:
        await until(lambda: one.replicas.warm)
        kept, asked = one.replicas.copies, list[int]()
        gone, there = 7, 8

        def answered(number, _facts):
            asked.append(number)
            return number == there

        monkeypatch.setattr(copies, "_ROOM_SECONDS", -1.0)
        monkeypatch.setattr(kept, "_answer", answered)
        pod = one.pod("pod-0")
        query = BucketsQuery(pod.endpoint.id, copies.epoch_now(pod), [1])
        for number in [*[gone] * 100, there, gone, there]:
            kept.take(number, query)
        await until(lambda: asked.count(there) == 2)
        assert asked == [gone, there, there]
        assert not kept.busy


async def test_what_was_asked_of_a_replica_that_is_gone_is_forgotten():
    async with started() as one:
        kept = one.replicas.copies
        async with started(one.port) as other:
            one.meets(other)
            await settled(one, other)
            (peer,), (there,) = peers(one), peers(other)
            peer.losses += 1
            pod = other.pod("pod-0")
            query = BucketsQuery(pod.endpoint.id, copies.epoch_now(pod), [1])
            other.replicas._answer(there.number, [query])
            await until(lambda: kept._reconciled)
            await kept.send_own_digests()
            assert kept._reconciled
        one.now += 1000
        await until(lambda: not peers(one))
        await kept.send_own_digests()
        assert not kept._reconciled
        assert not kept._asked


async def test_what_was_never_told_is_found_by_its_digest():
    """Whoever owns the endpoint, the other believes it."""
    async with two() as (one, other):
        await settled(one, other)
        serve_many(one, count=5)
        await until(lambda: held(one) == held(other))
        unheard(one)
        serve_many(one, seed="lost")
        heard(one)
        assert held(one) != held(other)
        await compare(one, other)
        await until(lambda: held(one) == held(other))
        for each in (one, other):
            check_invariants(each.fleet)
        assert compared(one, "different") + compared(other, "different") == 1


async def test_later_the_owner_is_believed():
    """The first time that two differ about an endpoint, each adds what the other holds."""
    async with two() as rigs:
        await settled(*rigs)
        pod = rigs[0].pod("pod-0").endpoint.id
        by_number = {each.replicas._writer.own: each for each in rigs}
        owner = by_number.pop(owner_of(pod, by_number))
        (other,) = by_number.values()
        first = set[int]()
        for seed in ("first", "later"):
            unheard(other)
            serve_many(other, seed=seed)
            heard(other)
            first = first or held(other)[pod]
            await compare(owner, other)
            await until(lambda: held(owner)[pod] == held(other)[pod])
            assert held(owner)[pod] == first


async def test_a_cache_that_was_cleared_is_empty_to_all_and_stays_so():
    async with two() as (one, other):
        await settled(one, other)
        serve_many(one)
        serve_many(one, pod="pod-1", seed="more")
        await until(lambda: held(one) == held(other))
        for pod in held(one):
            one.apply(CacheCleared(EndpointId(pod)))
        nothing: dict[str, set[int]] = {"default/pod-0": set(), "default/pod-1": set()}
        await until(lambda: held(other) == nothing)
        await compare(one, other)
        await until(lambda: not (one.replicas.copies.busy or other.replicas.copies.busy))
        assert held(one) == held(other) == nothing


async def test_what_was_told_of_a_cache_before_it_was_cleared_is_not_believed():
    async with two() as (one, other):
        await settled(one, other)
        unheard(one)
        serve_many(one)
        heard(one)
        pod = one.pod("pod-0")
        asked = BucketsQuery(pod.endpoint.id, copies.epoch_now(pod), list(range(1024)))
        contents = pod.scheduler.cache.contents()
        told = written_words(contents[0]), written_sizes(contents[1])
        reply = BucketsReply(asked.endpoint, asked.cache_epoch, asked.buckets, *told)
        number = one.replicas._writer.own
        other.replicas.copies._ask(number, asked)
        other.apply(CacheCleared(pod.endpoint.id))
        with pytest.raises(ValueError, match="it was not asked for"):
            await other.replicas.copies._apply_buckets(number, reply)
        assert held(other)["default/pod-0"] == set()


async def test_of_a_cache_that_no_message_has_room_for_a_part_is_told(monkeypatch):
    async with started() as one:
        serve_many(one, 100)
        cache = one.pod("pod-0").scheduler.cache
        most = len(cache.hashes()) // 3
        monkeypatch.setattr(copies, "_MOST_BLOCKS", most)
        await until(lambda: one.replicas.warm)
        await settled(one)
        async with started(one.port) as fresh:
            one.meets(fresh)
            await until(lambda: fresh.replicas.warm)
            assert held(fresh)["default/pod-0"] == set(cache.contents()[0][:most])
            await settled(one, fresh)
            before = fresh.replicas.copies.copied
            await compare(one, fresh)
            await until(lambda: fresh.replicas.copies.copied > before)
            await until(lambda: not fresh.replicas.copies.busy)
            assert len(held(fresh)["default/pod-0"]) < 2.5 * most
            check_invariants(fresh.fleet)


def apart(one, other):
    """Have each see what the other does not; return what both hold together of pod-0."""
    for each, seed in ((one, "left"), (other, "right")):
        unheard(each)
        serve_many(each, seed=seed)
        heard(each)
    return held(one)["default/pod-0"] | held(other)["default/pod-0"]


def lose_the_first(kind, rig):
    """Have the first one of this kind be lost, by which the owner adds what the other holds."""
    copies_of = rig.replicas.copies
    answer, lost = copies_of._answer, list[object]()

    def answered_but_once(number, facts):
        if not lost and isinstance(facts[0], kind) and facts[0].added:
            lost.extend(facts)
            return kind is BucketsReply  # on its way; a question finds no room
        return answer(number, facts)

    copies_of._answer = answered_but_once


@pytest.mark.parametrize("lost", [(), BucketsQuery, BucketsReply])
async def test_both_sides_of_a_partition_come_together(lost):
    """What each saw alone, both know after the digests went round twice."""
    async with two() as (one, other):
        await settled(one, other)
        own = [each.replicas._writer.own for each in (one, other)]
        for rig, number in zip((one, other), own, strict=True):
            owns = owner_of(EndpointId("default/pod-0"), own) == number
            if owns is (lost is BucketsQuery):
                lose_the_first(lost, rig)
        both = apart(one, other)
        for each in (one, other):
            (peer,) = peers(each)
            peer.losses += 1
        await compare(one, other)
        await until(lambda: both in (held(one)["default/pod-0"], held(other)["default/pod-0"]))
        await compare(one, other)
        await until(lambda: held(one) == held(other))
        assert held(one)["default/pod-0"] == both


async def test_two_that_meet_long_after_their_starts_come_together(monkeypatch):
    monkeypatch.setattr(copies, "DIGEST_SECONDS", 0.2)
    async with started() as one, started() as other:
        await until(lambda: all(each.replicas._writer.settled for each in (one, other)))
        for each, seed in ((one, "left"), (other, "right")):
            serve_many(each, seed=seed)
        both = held(one)["default/pod-0"] | held(other)["default/pod-0"]
        one.meets(other)
        other.meets(one)
        await until(lambda: held(one) == held(other))
        assert held(one)["default/pod-0"] == both


async def test_who_starts_from_one_of_two_takes_nothing_from_the_other():
    """They differ still, as they do just after both settle, and it owns an endpoint at once."""
    async with two() as (one, other):
        await settled(one, other)
        pod, both = one.pod("pod-0").endpoint.id, apart(one, other)
        known = [each.replicas._writer.own for each in (one, other)]
        fresh = Started(one.port, other.port)
        while owner_of(pod, [own := fresh.replicas._writer.own, *known]) != own:
            fresh = Started(one.port, other.port)
        async with fresh.running():
            for each in (one, other):
                each.meets(fresh)
            await settled(one, other, fresh)
            assert held(fresh) in (held(one), held(other))
            await fresh.replicas.copies.send_own_digests()
            await until(lambda: held(fresh)[pod] == both)
            await fresh.replicas.copies.send_own_digests()
            for each in (one, other):
                await until(lambda each=each: held(each)[pod] == both)


def lose_a_message(rig):
    """Have a message of a replica not arrive: its next one has a later number."""
    rig.replicas._writer._sequence += 1


async def test_replicas_that_lose_messages_all_the_time_come_together():
    async with two() as (one, other):
        await settled(one, other)
        both = set[int]()
        for number in range(3):
            for each, seed in ((one, "left"), (other, "right")):
                unheard(each)
                serve_many(each, seed=f"{seed}{number}", pod="pod-1")
                heard(each)
                both |= held(each)["default/pod-1"]
                (peer,) = peers(each)
                lost = peer.losses
                lose_a_message(other if each is one else one)
                await until(lambda peer=peer, lost=lost: peer.losses > lost)
            await compare(one, other)
            for each in (one, other):
                await until(lambda each=each, both=both: held(each)["default/pod-1"] >= both)


async def test_little_is_left_as_it_is():
    async with two() as (one, other):
        await settled(one, other)
        unheard(one)
        serve_many(one, count=1)
        heard(one)
        await compare(one, other)
        assert compared(one, "same") + compared(other, "same") == 2
        assert held(one) != held(other)


async def test_blocks_from_before_a_restart_do_not_come_back():
    async with two() as (one, other):
        await settled(one, other)
        serve_many(one)
        await until(lambda: held(one) == held(other) and held(one)["default/pod-0"])
        for each in (one, other):
            each.report("pod-0", started_at=1000.0)
            each.report("pod-1", started_at=1000.0)
        one.report("pod-0", started_at=2000.0)
        assert held(one)["default/pod-0"] == set()
        stale = 'warmpick_replica_dropped_total{reason="stale_endpoint"}'
        for each in (one, other):
            await each.replicas.copies.send_own_digests()
        await until(lambda: one.metrics()[stale] + other.metrics()[stale] == 1)
        assert held(one)["default/pod-0"] == set()
        assert held(other)["default/pod-0"] != set()


async def test_a_replica_whose_memory_is_full_copies_nothing_and_is_copied_by_nobody():
    small, blocks = 100, HELD_BYTES + HASH_BYTES
    async with started() as one, started(one.port, index_bytes=small * blocks) as other:
        one.meets(other)
        await settled(one, other)
        for pod in ("pod-0", "pod-1"):
            serve_many(one, 100, seed=pod, pod=pod)
        known = held(one)
        await until(lambda: other.in_flight_here() == {})
        await until(lambda: sum(map(len, held(other).values())) > small / 2)
        await until(lambda: not any(each.owns for each in peers(one)))
        assert all(each.owns for each in peers(other))
        for _ in range(3):
            await compare(one, other)
            await until(lambda: not other.replicas.copies.busy and not one.replicas.copies.busy)
        assert compared(other, "different") > 0
        assert [each.replicas.copies.copied for each in (one, other)] == [0, 0]
        assert held(one) == known
        other.apply(EndpointRemoved(EndpointId("default/pod-0")))
        other.apply(EndpointRemoved(EndpointId("default/pod-1")))
        for seconds, full in ((40, True), (10, False)):
            other.now += seconds
            other.replicas._heartbeat()
            await until(lambda full=full: [each.owns for each in peers(one)] == [not full])


def numbers(rig):
    return {pod: len(there) for pod, there in held(rig).items()}


def at_each_copy(rig):
    """Collect how many blocks caches hold: what is asked between two copies finds that."""
    found = []
    rig.fleet.subscribe((CacheCopied,), lambda *_: found.append(numbers(rig)), "copies")
    return found


@pytest.mark.parametrize("small", [400, 200])
async def test_replicas_whose_memory_is_full_exchange_as_many_blocks_as_they_give_up(
    small, monkeypatch
):
    monkeypatch.setattr(copies, "_AT_ONCE", 16)
    blocks = HELD_BYTES + HASH_BYTES
    async with (
        started(index_bytes=400 * blocks) as one,
        started(one.port, index_bytes=small * blocks) as other,
    ):
        one.meets(other)
        await settled(one, other)
        for each, seed in ((one, "a"), (other, "b")):
            unheard(each)
            for pod in ("pod-0", "pod-1"):
                serve_many(each, 200, seed=f"{seed}{pod}", pod=pod)
            heard(each)
        await until(lambda: all(peer.full for each in (one, other) for peer in peers(each)))
        before = [held(each) for each in (one, other)]
        assert not any(before[0][pod] & before[1][pod] for pod in before[0])
        at_first = [numbers(each) for each in (one, other)]
        then = [at_each_copy(each) for each in (one, other)]
        await compare(one, other)

        def share(pod):
            here, there = held(one)[pod], held(other)[pod]
            return len(here & there) / min(len(here), len(there))

        await until(lambda: all(share(pod) > 0.9 for pod in before[0]))
        await until(lambda: not other.replicas.copies.busy and not one.replicas.copies.busy)
        for each, number, found in zip((one, other), at_first, then, strict=True):
            assert numbers(each) == number
            assert all(copied == number for copied in found)
            check_invariants(each.fleet)
        assert sum(map(len, then)) > 2
