"""A replica that starts knows what others know before it is warm."""

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from epp.adapters.replicas.settings import mark_of
from epp.app.replicas import copies, exchange, warm_boot
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointUpserted, Listed
from epp.model.kv_changes import CacheCleared, CacheFeedUp
from epp.model.prefix_index.index import HASH_BYTES, HELD_BYTES
from epp.model.request import RequestId
from epp.model.request_events import ResponseNamed
from epp.protocol.replicas.facts import LeavingFact, NoSnapshot, SnapshotQuery
from epp.protocol.replicas.peers import Peer
from tests.app.replica_rig import (
    MANY,
    SECRET,
    Started,
    peers,
    serve_many,
    settled,
    speeds,
    started,
    starting,
    two,
)
from tests.model.invariants import check_invariants
from tests.protocol.replicas.pair import Replica, facts_of, held
from tests.strategies import text
from tests.tasks import running, until

pytestmark = pytest.mark.usefixtures("digests_when_they_are_wanted")


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
        one.meets(one)  # as where all are given the same list
        with capture_logs() as logs:
            async with fresh.running():
                one.meets(fresh)
                assert held(fresh) == {"default/pod-0": set(), "default/pod-1": set()}
                await until(lambda: fresh.replicas.warm)
                assert held(fresh)["default/pod-0"] == held(one)["default/pod-0"]
                assert queue(fresh) == queue(one)
                assert speeds(fresh) == speeds(one)
                assert speeds(one)["pod-1"] > 1.5 * speeds(one)["pod-0"] > 0
                await until(lambda: fresh.in_flight_here() == {"under way": "pod-1"})
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
                one.meets(fresh)
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
        one.meets(cold)
        async with running(cold.run()):
            await until(lambda: cold.replicas.warm)
        assert not cold.replicas._writer.settled
        monkeypatch.setattr(exchange, "_UNSETTLED_SECONDS", 0.1)
        try:
            async with running(cold.run()):
                await settled(one, cold)
        finally:
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
            one.meets(fresh)
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
            one.meets(fresh)
            await until(lambda: fresh.replicas.warm)
            assert held(fresh)["default/pod-0"] == set()


async def test_a_snapshot_takes_one_way_though_its_reader_sends_on_two():
    """Else a part that waits on one would be overtaken by the next on the other."""
    async with started() as one:
        serve_many(one)
        await until(lambda: one.replicas.warm)
        fresh, taken = Replica(9, pool=mark_of(SECRET, "pool")), list[object]()

        def receive(message):
            one.replicas._receive(message, lambda answer: take(message, answer))

        def take(way, answer):
            if isinstance(facts_of(answer)[0], copies.SnapshotPart):
                taken.append(way)
                receive(fresh.heartbeat())
            return True

        receive(fresh.writer.to_one([SnapshotQuery(unsettled=True)], 0.0))
        await until(lambda: len(taken) == 3)
        assert len(set(taken)) == 1


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
                    others[number].mesh.send(leaving)

                ask = fresh.replicas._boot._ask
                monkeypatch.setattr(fresh.replicas._boot, "_ask", leaves)
                for each in (one, other):
                    each.meets(fresh)
                await until(lambda: fresh.replicas.warm)
                assert sorted(asked) == sorted(others)
                assert held(fresh) == held(one)
        assert "replicas.cold" not in [each["event"] for each in logs]


async def test_a_replica_whose_memory_is_full_is_asked_last():
    """Else the one that starts would own endpoints whose blocks it does not know."""
    small = 100 * (HELD_BYTES + HASH_BYTES)
    async with started() as one, started(one.port, index_bytes=small) as other:
        one.meets(other)
        await settled(one, other)
        serve_many(one, 100)
        await until(lambda: not any(each.owns for each in peers(one)))
        fresh = Started(one.port, other.port)
        for each in (other, one):  # the order in which it hears of them
            number = each.replicas._writer.own
            fresh.replicas.reader.peers[number] = known = Peer(number)
            known.last_message_at = fresh.now
        async with fresh.running():
            for each in (one, other):
                each.meets(fresh)
            await until(lambda: fresh.replicas.warm)
            assert held(fresh) == held(one) != held(other)


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
            one.meets(fresh)
            await until(lambda: fresh.replicas.warm)
            assert held(fresh)["default/pod-0"] == held(one)["default/pod-0"]


async def test_a_replica_that_hears_answers_alone_is_not_the_first(monkeypatch):
    """Those that were there before connect to one that is new when they try again."""
    monkeypatch.setattr(warm_boot, "_FIRST_SECONDS", 0.0)
    other, fresh = Replica(1), Replica(2)
    fresh.hear(other.hear(fresh.heartbeat()))
    assert fresh.reader.present == 1
    assert await said_at_its_start(fresh, lambda _: ()) == ["replicas.cold"]


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
    assert await said_at_its_start(fresh, lambda _: tuple(told) or (NoSnapshot(),)) == [said]


async def learned_by(other):
    """Return the first part of a snapshot of a replica that has seen slow prompts."""
    for _ in range(20):
        other.pod("pod-0").pace.learn_prompt(1000, 0, 0.5)
    return await anext(copies.snapshot(other.fleet, ()))


async def test_one_that_leaves_amid_its_snapshot_has_told_nothing(monkeypatch):
    monkeypatch.setattr(warm_boot, "_FIRST_SECONDS", 0.0)
    other, fresh = Replica(1), Replica(2)
    other.writer.settled = True
    fresh.hear(other.heartbeat())
    learned = await learned_by(other)

    def told(_number):
        yield learned
        fresh.hear(other.writer.to_all([LeavingFact()], 0.0))

    before = speeds(fresh)
    assert await said_at_its_start(fresh, told) == ["replicas.first"]
    assert speeds(fresh) == before


async def test_what_one_without_caches_has_learned_is_kept_if_others_know_less(monkeypatch):
    monkeypatch.setattr(warm_boot, "_FIRST_SECONDS", 0.0)
    other, cold, fresh = Replica(1), Replica(3), Replica(2)
    other.writer.settled = True
    for each in (other, cold):
        fresh.hear(each.heartbeat())
    told = {1: [await learned_by(other), NoSnapshot()], 3: [NoSnapshot()]}
    assert await said_at_its_start(fresh, told.__getitem__) == ["replicas.warm"]
    assert speeds(fresh) == speeds(other)


async def test_what_one_without_caches_has_learned_is_kept_if_the_next_leaves(monkeypatch):
    monkeypatch.setattr(warm_boot, "_FIRST_SECONDS", 0.0)
    other, leaving, fresh = Replica(1), Replica(3), Replica(2)
    for each in (other, leaving):
        each.writer.settled = True
        fresh.hear(each.heartbeat())
    learned = await learned_by(other)

    def told(number):
        if number == other.number:
            yield from (learned, NoSnapshot())
        else:
            fresh.hear(leaving.writer.to_all([LeavingFact()], 0.0))

    assert await said_at_its_start(fresh, told) == ["replicas.warm"]
    assert speeds(fresh) == speeds(other)


async def said_at_its_start(fresh, told):
    """Start a replica to which each that it asks tells this; return what it logs."""

    def ask(number):
        for fact in told(number):
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
                one.meets(fresh)
                await until(lambda: fresh.replicas.warm)
                assert speeds(fresh) == speeds(one)
                home = fresh.pod("pod-0").endpoint.engine
                assert fresh.fleet.responses.engine_of("resp_1", fresh.now) == home
    assert [
        each["event"] for each in logs if each["event"] in {"replicas.warm", "replicas.first"}
    ] == ["replicas.warm"]
