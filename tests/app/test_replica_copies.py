"""Caches as a whole: compared, mended and copied between replicas, over real sockets."""

import asyncio
import contextlib
import itertools

import msgspec
import pytest
from structlog.testing import capture_logs

from epp.adapters.replicas.settings import PeerAddress
from epp.app.replicas import copies, exchange, warm_boot
from epp.model.endpoint import EndpointId, Target
from epp.model.events import EndpointRemoved, EndpointUpserted, Listed
from epp.model.kv_changes import CacheCleared, CacheFeedUp
from epp.model.learning.stored_responses import MOST
from epp.model.prefix_index.index import HASH_BYTES, HELD_BYTES
from epp.model.request import RequestId, Usage
from epp.model.request_events import Finished, ResponseNamed
from epp.protocol.replicas.chains import written_words
from epp.protocol.replicas.facts import (
    BucketsQuery,
    BucketsReply,
    ContentsReply,
    LeavingFact,
    NoSnapshot,
    StoredReply,
)
from epp.protocol.replicas.peers import Peer
from tests.app.test_replicas import HERE, Started, started, two, until
from tests.model.invariants import check_invariants
from tests.protocol.replicas.pair import Replica, held
from tests.strategies import text

MANY = 30
ENGINE = "uid", Target("10.0.0.1:8000"), None


@pytest.fixture(autouse=True)
def digests_when_they_are_wanted(monkeypatch):
    monkeypatch.setattr(copies, "DIGEST_SECONDS", 1e6)


def serve_many(rig, count=MANY, seed="", pod="pod-0"):
    for number in range(count):
        name = f"{seed}{number}"
        rig.send(pod, name, text(300, seed=f"{seed}x{number}y"))
        rig.apply(Finished(RequestId(name), Usage(300, 1, 0)))


def unheard(rig):
    """Have what follows not be told."""
    rig.replicas._writer.applying = True


def heard(rig):
    rig.replicas._writer.applying = False


async def settled(*rigs):
    """Wait until each may own endpoints, and all others know."""
    await until(lambda: all(each.replicas._writer.settled for each in rigs))
    await until(lambda: all(peer.owns for each in rigs for peer in peers(each)))


def peers(rig):
    return list(rig.replicas.reader.peers.values())


def compared(rig, result):
    return rig.metrics()[f'warmpick_replica_caches_compared_total{{result="{result}"}}']


async def compare(*rigs):
    """Have digests go round, and wait until each endpoint's was looked at."""
    before = sum(compared(each, result) for each in rigs for result in ("same", "different"))
    for each in rigs:
        await each.replicas.copies.send_own_digests()
    await until(
        lambda: (
            sum(compared(each, result) for each in rigs for result in ("same", "different"))
            == before + 2
        )
    )


def speeds(rig):
    """Return what a prompt of 1,000 tokens takes at each, in seconds."""
    paces = {pod.endpoint.name: pod.pace for pod in rig.fleet.pods.values()}
    return {
        name: pace.prefill_slowness.value * pace.of_class.prefill.seconds(1000, 0)
        for name, pace in paces.items()
    }


def queue(rig, name="pod-0"):
    return list(rig.pod(name).scheduler.cache.free_blocks())


async def test_a_fresh_replica_knows_what_another_knows_before_it_is_warm():
    async with started() as one:
        serve_many(one)
        await until(lambda: one.replicas.warm)
        one.send("pod-1", "under way", text(300))
        for _ in range(20):
            one.pod("pod-0").pace.learn_prompt(1000, 0, 0.5)
            one.pod("pod-1").pace.learn_prefill(0.5, 1.0, one.now)
        await settled(one)
        fresh = Started(one.port)
        one.replicas.transport._settings.peers.append(PeerAddress(HERE, one.port))
        with capture_logs() as logs:
            fresh.start()
            one.replicas.transport._settings.peers.append(PeerAddress(HERE, fresh.port))
            task = asyncio.ensure_future(fresh.run())
            try:
                assert held(fresh) == {"default/pod-0": set(), "default/pod-1": set()}
                await until(lambda: fresh.replicas.warm)
                assert held(fresh)["default/pod-0"] == held(one)["default/pod-0"]
                assert queue(fresh) == queue(one)
                assert speeds(fresh) == speeds(one)
                assert speeds(one)["pod-1"] > 1.5 * speeds(one)["pod-0"] > 0
                await until(lambda: fresh.in_flight_here() == {"under way": "pod-1"})
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await fresh.stop()
        assert "replicas.warm" in [each["event"] for each in logs]
        check_invariants(fresh.fleet)


async def test_the_first_replica_is_warm_soon_and_says_that_it_is_the_first():
    with capture_logs() as logs:
        async with started() as one:
            assert not one.replicas.warm
            await until(lambda: one.replicas.warm)
    assert "replicas.first" in [each["event"] for each in logs]


async def test_a_snapshot_that_does_not_come_in_time_changes_nothing(monkeypatch):
    with capture_logs() as logs:
        async with started() as one:
            serve_many(one)
            await until(lambda: one.replicas.warm)
            await settled(one)
            monkeypatch.setattr(one.replicas.copies, "take", lambda *_: None)
            async with started(one.port, warm_limit=0.5) as fresh:
                one.replicas.transport._settings.peers.append(PeerAddress(HERE, fresh.port))
                await until(lambda: fresh.replicas.warm)
                assert held(fresh) == {"default/pod-0": set(), "default/pod-1": set()}
                assert not fresh.replicas._writer.settled
    assert "replicas.cold" in [each["event"] for each in logs]


async def test_one_that_starts_cold_owns_though_its_exchange_is_started_again(monkeypatch):
    async with started() as one:
        await until(lambda: one.replicas.warm)
        await settled(one)
        monkeypatch.setattr(one.replicas.copies, "take", lambda *_: None)
        cold = Started(one.port, warm_limit=0.2)
        cold.start()
        one.replicas.transport._settings.peers.append(PeerAddress(HERE, cold.port))
        task = asyncio.ensure_future(cold.run())
        await until(lambda: cold.replicas.warm)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not cold.replicas._writer.settled
        monkeypatch.setattr(exchange, "_UNSETTLED_SECONDS", 0.1)
        task = asyncio.ensure_future(cold.run())
        try:
            await settled(one, cold)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await cold.stop()


async def test_a_snapshot_that_came_is_applied_as_a_whole_however_long_that_takes(monkeypatch):
    async with started() as one:
        for pod in ("pod-0", "pod-1"):
            serve_many(one, seed=pod, pod=pod)
        await until(lambda: one.replicas.warm)
        await settled(one)
        limits, timeout = [], asyncio.timeout

        def recorded(delay):
            made = timeout(delay)
            limits.extend([made] if delay == 3.25 else [])
            return made

        monkeypatch.setattr(asyncio, "timeout", recorded)
        async with started(one.port, warm_limit=3.25) as fresh:
            apply = fresh.replicas._boot._apply

            def slowly(events):
                (limit,) = limits
                with contextlib.suppress(RuntimeError):  # it does not count any more
                    limit.reschedule(asyncio.get_running_loop().time())
                apply(events)

            monkeypatch.setattr(fresh.replicas._boot, "_apply", slowly)
            one.replicas.transport._settings.peers.append(PeerAddress(HERE, fresh.port))
            await until(lambda: fresh.replicas.warm)
            assert held(fresh) == held(one)


async def test_a_snapshot_with_a_part_missing_is_none(monkeypatch):
    monkeypatch.setattr(warm_boot, "_FIRST_SECONDS", 0.0)
    async with started() as one:
        serve_many(one)
        await until(lambda: one.replicas.warm)
        await settled(one)
        answer = one.replicas.copies._answer
        monkeypatch.setattr(
            one.replicas.copies,
            "_answer",
            lambda to, facts: None if getattr(facts[0], "left", 0) else answer(to, facts),
        )
        async with started(one.port, warm_limit=1.0) as fresh:
            one.replicas.transport._settings.peers.append(PeerAddress(HERE, fresh.port))
            await until(lambda: fresh.replicas.warm)
            assert held(fresh)["default/pod-0"] == set()


async def test_a_replica_that_leaves_before_it_has_told_all_is_not_waited_for(monkeypatch):
    async with two() as (one, other):
        serve_many(one)
        await settled(one, other)
        await until(lambda: held(one) == held(other) and other.in_flight_here() == {})
        others = {each.replicas._writer.own: each.replicas for each in (one, other)}
        with capture_logs() as logs:
            async with started(one.port, other.port, warm_limit=3.0) as fresh:
                asked = list[int]()

                def leaves(number):
                    """The first one that is asked leaves instead."""
                    asked.append(number)
                    if len(asked) > 1:
                        ask(number)
                        return
                    leaving = others[number]._writer.to_all([LeavingFact()], 0.0)
                    others[number].transport.send(leaving)

                ask = fresh.replicas._boot._ask
                monkeypatch.setattr(fresh.replicas._boot, "_ask", leaves)
                for each in (one, other):
                    each.replicas.transport._settings.peers.append(PeerAddress(HERE, fresh.port))
                await until(lambda: fresh.replicas.warm)
                assert sorted(asked) == sorted(others)
                assert held(fresh) == held(one)
        assert "replicas.cold" not in [each["event"] for each in logs]


async def test_a_replica_whose_memory_is_full_is_asked_last():
    """Else the one that starts would own endpoints whose blocks it does not know."""
    small = 100 * (HELD_BYTES + HASH_BYTES)
    async with started() as one, started(one.port, index_bytes=small) as other:
        one.replicas.transport._settings.peers.append(PeerAddress(HERE, other.port))
        await settled(one, other)
        serve_many(one, 100)
        await until(lambda: not any(each.owns for each in peers(one)))
        fresh = Started(one.port, other.port)
        for each in (other, one):  # the order in which it hears of them
            number = each.replicas._writer.own
            fresh.replicas.reader.peers[number] = known = Peer(number)
            known.last_message_at = fresh.now
        fresh.start()
        for each in (one, other):
            each.replicas.transport._settings.peers.append(PeerAddress(HERE, fresh.port))
        task = asyncio.ensure_future(fresh.run())
        try:
            await until(lambda: fresh.replicas.warm)
            assert held(fresh) == held(one) != held(other)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await fresh.stop()


@contextlib.asynccontextmanager
async def starting(one, *, listed):
    """A replica that begins to start beside another, and all endpoints; it may know none yet."""
    fresh = Started(one.port)
    endpoints = fresh.fleet.endpoints
    if not listed:
        for each in endpoints:
            fresh.apply(EndpointRemoved(each.id))
    fresh.start()
    one.replicas.transport._settings.peers.append(PeerAddress(HERE, fresh.port))
    task = asyncio.ensure_future(fresh.run())
    try:
        yield fresh, endpoints
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await fresh.stop()


@pytest.mark.parametrize("late", ["listed", "read"])
async def test_a_snapshot_that_comes_before_the_endpoints_are_known_waits_for_them(late):
    async with started() as one:
        for pod in ("pod-0", "pod-1"):
            one.report(pod, started_at=1000.0)
        serve_many(one)
        await until(lambda: one.replicas.warm)
        await settled(one)
        async with starting(one, listed=late != "listed") as (fresh, endpoints):
            await until(lambda: fresh.replicas.warm or len(fresh.replicas._boot._parts) == 2)
            for each in endpoints:
                fresh.apply(EndpointUpserted(each))
                fresh.report(each.name, started_at=1000.0)
            await until(lambda: fresh.replicas.warm)
            assert held(fresh) == held(one)


async def test_endpoints_that_are_not_listed_any_more_hold_no_start_up():
    async with started() as one:
        one.add("pod-2", "10.0.0.3")
        serve_many(one)
        await until(lambda: one.replicas.warm)
        await settled(one)
        async with started(one.port) as fresh:
            fresh.apply(Listed())
            one.replicas.transport._settings.peers.append(PeerAddress(HERE, fresh.port))
            await until(lambda: fresh.replicas.warm)
            assert held(fresh)["default/pod-0"] == held(one)["default/pod-0"]


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
            one.replicas.transport._settings.peers.append(PeerAddress(HERE, fresh.port))
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
        epoch = copies.epoch_now(one.pod("pod-0"))
        for number in [*[gone] * 100, there, gone]:
            kept.take(number, BucketsQuery("default/pod-0", epoch, [1]))
        kept.take(there, BucketsQuery("default/pod-0", epoch, [1]))
        await until(lambda: asked.count(there) == 2)
        assert asked == [gone, there, there]
        assert not kept.busy


async def test_what_was_asked_of_a_replica_that_is_gone_is_forgotten():
    async with started() as one:
        kept = one.replicas.copies
        async with started(one.port) as other:
            one.replicas.transport._settings.peers.append(PeerAddress(HERE, other.port))
            await settled(one, other)
            (peer,), (there,) = peers(one), peers(other)
            peer.losses += 1
            epoch = copies.epoch_now(other.pod("pod-0"))
            other.replicas._answer(there.number, [BucketsQuery("default/pod-0", epoch, [1])])
            await until(lambda: kept._reconciled)
            await kept.send_own_digests()
            assert kept._reconciled
        one.now += 1000
        await until(lambda: not peers(one))
        await kept.send_own_digests()
        assert not kept._reconciled
        assert not kept._asked


async def test_a_replica_that_hears_answers_alone_is_not_the_first(monkeypatch):
    """Those that were there before connect to one that is new when they try again."""
    monkeypatch.setattr(warm_boot, "_FIRST_SECONDS", 0.0)
    other, fresh = Replica(1), Replica(2)
    fresh.hear(other.hear(fresh.heartbeat()))
    assert fresh.reader.present == 1
    assert await said_at_its_start(fresh, None) == ["replicas.cold"]


@pytest.mark.parametrize(
    ("left", "total", "said"),
    [
        ((1, 0), 2, "replicas.warm"),
        ((1, 0), 0, "replicas.warm"),  # versions before do not say it
        ((2, 0), 3, "replicas.cold"),
        ((0,), 2, "replicas.cold"),
        ((), 0, "replicas.first"),
    ],
)
async def test_whose_snapshot_is_broken_is_not_the_first(monkeypatch, left, total, said):
    monkeypatch.setattr(warm_boot, "_FIRST_SECONDS", 0.0)
    other, fresh = Replica(1), Replica(2)
    other.writer.settled = True
    fresh.hear(other.heartbeat())
    told = [
        copies.contents_reply(pod, each, total)
        for pod, each in zip(other.fleet.pods.values(), left, strict=False)
    ]
    assert await said_at_its_start(fresh, told or [NoSnapshot()]) == [said]


@pytest.mark.parametrize(
    ("keys", "places"),
    [
        (bytes(16), bytes(4)),
        (bytes(8), b"\1\0\0\0"),
        (bytes(8), b"\xff\xff\xff\xff"),
        (bytes(7), bytes(4)),
        (bytes(8), bytes(3)),
    ],
)
def test_stored_responses_that_cannot_be_are_told_of_none(keys, places):
    with pytest.raises(ValueError):  # noqa: PT011 (what is nonsense)
        copies.stored_from(StoredReply([ENGINE], keys, places))


def test_of_more_stored_responses_than_are_kept_the_latest_are_taken():
    older, kept = 9, range(9, 9 + MOST)
    keys, places = [*range(older), *kept], [1] * older + [0] * MOST
    told = StoredReply([ENGINE], written_words(keys), copies.written_sizes(places))
    assert copies.stored_from(told).stored == [(key, ENGINE) for key in kept]


def test_more_engines_than_responses_that_are_kept_are_not_read():
    message = msgspec.msgpack.encode(StoredReply([ENGINE] * (MOST + 1), b"", b""))
    with pytest.raises(msgspec.ValidationError, match="length <= 65536"):
        msgspec.msgpack.decode(message, type=StoredReply)


async def said_at_its_start(fresh, told):
    """Start a replica to which this is told once it asks; return what it logs."""

    def ask(number):
        for fact in told:
            boot.receive(number, fact)

    def apply(events):
        for event in events:
            fresh.apply(event)

    async def kept():
        return ()

    boot = warm_boot.WarmBoot(fresh.fleet, fresh.reader, ask, apply, 0.05, kept)
    with capture_logs() as logs:
        assert await boot.run() is ("replicas.cold" not in {each["event"] for each in logs})
    return [each["event"] for each in logs]


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


async def test_a_cache_that_is_cleared_while_a_replica_starts_stays_empty():
    async with started() as one:
        serve_many(one)
        serve_many(one, pod="pod-1", seed="more")
        await until(lambda: one.replicas.warm)
        await settled(one)
        async with starting(one, listed=False) as (fresh, endpoints):
            await until(lambda: len(fresh.replicas._boot._parts) == 2)
            one.apply(CacheCleared(EndpointId("default/pod-0")))
            one.send("pod-1", "told after it", text(300))
            waits = 'warmpick_replica_dropped_total{reason="unknown_endpoint"}'
            await until(lambda: fresh.metrics()[waits] >= 1)
            for each in endpoints:
                fresh.apply(EndpointUpserted(each))
            await until(lambda: fresh.replicas.warm)
            assert held(fresh)["default/pod-0"] == set()
            assert len(held(fresh)["default/pod-1"]) >= MANY


async def test_what_was_told_of_a_cache_before_it_was_cleared_is_not_believed():
    async with two() as (one, other):
        await settled(one, other)
        unheard(one)
        serve_many(one)
        heard(one)
        pod = one.pod("pod-0")
        asked = BucketsQuery(pod.endpoint.id, copies.epoch_now(pod), list(range(1024)))
        contents = pod.scheduler.cache.contents()
        told = written_words(contents[0]), copies.written_sizes(contents[1])
        reply = BucketsReply(asked.endpoint, asked.epoch, asked.buckets, *told)
        number = one.replicas._writer.own
        other.replicas.copies._ask(number, asked)
        other.apply(CacheCleared(pod.endpoint.id))
        with pytest.raises(ValueError, match="it was not asked for"):
            await other.replicas.copies._apply_buckets(number, reply)
        assert held(other)["default/pod-0"] == set()


async def test_both_sides_of_a_partition_come_together():
    """What each saw alone, both know after the digests went round twice."""
    async with two() as (one, other):
        await settled(one, other)
        for each, seed in ((one, "left"), (other, "right")):
            unheard(each)
            serve_many(each, seed=seed)
            heard(each)
            (peer,) = peers(each)
            peer.losses += 1
        both = held(one)["default/pod-0"] | held(other)["default/pod-0"]
        await compare(one, other)
        await until(lambda: both in (held(one)["default/pod-0"], held(other)["default/pod-0"]))
        await compare(one, other)
        await until(lambda: held(one) == held(other))
        assert held(one)["default/pod-0"] == both


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


async def test_what_was_learned_and_stored_is_told_if_engines_report_their_caches_themselves():
    async with started() as one:
        for pod in ("pod-0", "pod-1"):
            one.apply(CacheFeedUp(one.pod(pod).endpoint.id, complete=True))
        for _ in range(20):
            one.pod("pod-0").pace.learn_prompt(1000, 0, 0.5)
        one.send("pod-0", "a", text(300))
        one.apply(ResponseNamed(RequestId("a"), "resp_1"))
        await until(lambda: one.replicas.warm)
        await settled(one)
        with capture_logs() as logs:
            async with started(one.port) as fresh:
                one.replicas.transport._settings.peers.append(PeerAddress(HERE, fresh.port))
                await until(lambda: fresh.replicas.warm)
                assert speeds(fresh) == speeds(one)
                home = fresh.pod("pod-0").endpoint.engine
                assert fresh.fleet.responses.engine_of("resp_1", fresh.now) == home
    assert [
        each["event"] for each in logs if each["event"] in {"replicas.warm", "replicas.first"}
    ] == ["replicas.warm"]


async def test_a_replica_whose_memory_is_full_copies_nothing_and_is_copied_by_nobody():
    small, blocks = 100, HELD_BYTES + HASH_BYTES
    async with started() as one, started(one.port, index_bytes=small * blocks) as other:
        one.replicas.transport._settings.peers.append(PeerAddress(HERE, other.port))
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


@pytest.mark.parametrize("small", [400, 200])
async def test_replicas_whose_memory_is_full_exchange_as_many_blocks_as_they_give_up(small):
    blocks = HELD_BYTES + HASH_BYTES
    async with (
        started(index_bytes=400 * blocks) as one,
        started(one.port, index_bytes=small * blocks) as other,
    ):
        one.replicas.transport._settings.peers.append(PeerAddress(HERE, other.port))
        await settled(one, other)
        for each, seed in ((one, "a"), (other, "b")):
            unheard(each)
            for pod in ("pod-0", "pod-1"):
                serve_many(each, 200, seed=f"{seed}{pod}", pod=pod)
            heard(each)
        await until(lambda: all(peer.full for each in (one, other) for peer in peers(each)))
        before = [held(each) for each in (one, other)]
        assert not any(before[0][pod] & before[1][pod] for pod in before[0])
        await compare(one, other)

        def share(pod):
            here, there = held(one)[pod], held(other)[pod]
            return len(here & there) / min(len(here), len(there))

        await until(lambda: all(share(pod) > 0.9 for pod in before[0]))
        await until(lambda: not other.replicas.copies.busy and not one.replicas.copies.busy)
        for each, known in zip((one, other), before, strict=True):
            assert {pod: len(there) for pod, there in held(each).items()} == {
                pod: len(there) for pod, there in known.items()
            }
            check_invariants(each.fleet)
