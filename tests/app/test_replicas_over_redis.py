"""Replicas that exchange what they see by a real Redis, and go on without it."""

import asyncio
import contextlib
import signal
import time
from collections import Counter

import aiohttp
import grpc
import msgspec
import pytest
from structlog.testing import capture_logs

from epp.adapters.replicas import redis_link
from epp.adapters.replicas.redis_server import redis_server
from epp.adapters.replicas.sealing import Seal
from epp.adapters.replicas.settings import Siblings, mark_of
from epp.app.observers import Faults
from epp.app.replicas import copies, exchange, keeping, warm_boot
from epp.model.kv_changes import CacheFeedUp
from epp.model.prefix_index.index import HASH_BYTES, HELD_BYTES
from epp.model.request import RequestId
from epp.model.request_events import Admitted, ResponseNamed
from epp.protocol.replicas.chains import read_words
from epp.protocol.replicas.facts import VERSION, ContentsReply, LeavingFact
from tests.adapters.ext_proc_peer import answered
from tests.app.replica_rig import (
    DEADLINE,
    HERE,
    SECRET,
    Started,
    peers,
    serve_many,
    settled,
    started,
)
from tests.app.test_replicas import PROMPT, check_each_knows_what_the_other_sees, shows
from tests.processes import forked_picker, said
from tests.protocol.replicas.pair import held
from tests.redis_process import redis_process
from tests.strategies import text
from tests.tasks import until

UNSENT = "warmpick_replica_messages_unsent_total"
REACHED = "warmpick_replicas_reached"


@pytest.fixture
def server(tmp_path):
    with redis_process(tmp_path) as made:
        yield made


def replica(server, **more):
    return started(redis=redis_server(server.address), **more)


async def reach(*rigs, number=1):
    for each in rigs:
        await until(lambda each=each: each.metrics()[REACHED] >= number)


@contextlib.asynccontextmanager
async def two(server):
    async with replica(server) as one, replica(server) as other:
        for each in (one, other):
            await each.hears()
        await reach(one, other)
        yield one, other


async def test_what_one_sees_the_other_knows_and_says_it_to_nobody(server):
    async with two(server) as (one, other):
        await check_each_knows_what_the_other_sees(one, other)
        assert one.metrics()["warmpick_replicas_known"] == 1


async def test_a_fresh_replica_is_given_a_snapshot_and_chains(server):
    async with replica(server) as one:
        serve_many(one)
        await until(lambda: one.replicas.warm)
        one.send("pod-1", "under way", PROMPT)
        await reach(one)
        with capture_logs() as logs:
            async with replica(server) as fresh:
                await until(lambda: fresh.replicas.warm)
                assert held(fresh)["default/pod-0"] == held(one)["default/pod-0"]
                await until(lambda: fresh.in_flight_here() == {"under way": "pod-1"})
                one.send("pod-0", "on", PROMPT)
                await until(lambda: "on" in fresh.in_flight_here())
        assert "replicas.warm" in [each["event"] for each in logs]


async def test_a_replica_that_a_slow_server_connects_late_is_not_the_first(server, monkeypatch):
    monkeypatch.setattr(redis_link, "ANSWER_SECONDS", DEADLINE)
    async with replica(server) as one:
        serve_many(one)
        await reach(one)
        await until(lambda: one.replicas._writer.settled)
        server.signal(signal.SIGSTOP)
        async with replica(server) as fresh:
            late = time.monotonic() + 1.5 * warm_boot._FIRST_SECONDS
            await until(lambda: time.monotonic() > late)
            server.signal(signal.SIGCONT)
            await until(lambda: fresh.replicas.warm)
            assert held(fresh) == held(one)


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"secret": b"another secret of sixteen bytes"}, "stranger"), ({"pool": "other"}, None)],
)
async def test_replicas_of_another_pool_or_secret_are_not_listened_to(server, more, reason):
    async with replica(server) as one, replica(server, **more) as other:
        await reach(one, other)
        other.send("pod-0", "a", PROMPT)
        if reason is None:
            assert one.dropped() == 0
        else:
            name = f'warmpick_replica_dropped_total{{reason="{reason}"}}'
            await until(lambda: one.metrics()[name] > 0)
        assert one.in_flight_here() == {}
        assert one.metrics()["warmpick_replicas_heard"] == 0


def written(pool="pool", version=VERSION, cut=0):
    """Write a message of a replica that is none."""
    mark = mark_of(SECRET, pool)
    message = msgspec.msgpack.encode((version, mark, 7, 1, 0.0, [LeavingFact()]))
    return message[: len(message) - cut]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (written(version=VERSION + 1), "version"),
        (written(pool="other"), "pool"),
        (written(cut=1), "malformed"),
        (b"", "malformed"),
        (b"\xc1" * 1000, "malformed"),
    ],
)
async def test_messages_of_who_has_the_secret_are_read_as_over_sockets(server, message, reason):
    seal = Seal(SECRET)
    async with replica(server) as one:
        await reach(one)
        stream = one.replicas.streams._own
        server.do("XADD", stream, "*", "m", seal.seal(stream, message))
        name = f'warmpick_replica_dropped_total{{reason="{reason}"}}'
        await until(lambda: one.metrics()[name] == 1)
        assert one.dropped() == 1
        assert one.metrics()["warmpick_replicas_heard"] == 0


async def test_messages_that_cannot_be_handled_are_counted_and_the_next_is_read(server):
    faults = Faults()

    def refuse(event, _now, _guessed):
        if event.quote.request_id.startswith("bad"):
            raise ValueError(event)

    with capture_logs() as logs:
        async with replica(server, on_fault=faults) as one, replica(server) as other:
            await reach(one, other)
            await one.hears()
            one.fleet.subscribe([Admitted], refuse)
            for number in range(3):
                other.send("pod-1", f"bad {number}", PROMPT)
                await until(lambda count=number + 1: sum(faults.counts.values()) == count)
            other.send("pod-1", "good", PROMPT)
            await until(lambda: "good" in one.in_flight_here())
            assert all(one.replicas.streams._works.values())
    assert faults.counts == {"observer/replicas": 3}
    said = Counter(each["event"] for each in logs if each["log_level"] != "info")
    assert said == {"fault": 1}


def full(server):
    """Leave the server no memory; return what ends that."""
    server.do("CONFIG", "SET", "maxmemory", "1")
    return lambda: server.do("CONFIG", "SET", "maxmemory", "0")


def read_only(server):
    server.do("CONFIG", "SET", "masterauth", "x")
    server.do("REPLICAOF", HERE, "1")
    return lambda: server.do("REPLICAOF", "NO", "ONE")


def stopped(server):
    server.signal(signal.SIGSTOP)
    return lambda: server.signal(signal.SIGCONT)


def empty(server):
    server.kill()
    return server.start


WRONG = {
    "full": (full, "OutOfMemoryError"),
    "read-only": (read_only, "ReadOnlyError"),
    "stopped": (stopped, "TimeoutError"),
    "started again empty": (empty, "ConnectionError"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_each_goes_on_alone_says_so_and_catches_up(server, what, monkeypatch):
    monkeypatch.setattr(copies, "DIGEST_SECONDS", 0.5)
    happens, problem = WRONG[what]
    with capture_logs() as logs:
        async with two(server) as (one, other):
            await until(lambda: one.replicas.warm and other.replicas.warm)
            ends = happens(server)
            await until(lambda: not one.metrics()[REACHED] and not other.metrics()[REACHED])
            before = one.metrics()[UNSENT]
            serve_many(one)  # what nobody else is told of
            one.send("pod-1", "a", PROMPT)
            assert one.ask(PROMPT)
            assert one.replicas.warm
            await until(lambda: one.metrics()[UNSENT] > before)
            assert one.metrics()["warmpick_replicas_known"] >= 1
            ends()
            await reach(one, other)
            await until(lambda: other.in_flight_here() == {"a": "pod-1"})
            await until(lambda: held(other)["default/pod-0"] == held(one)["default/pod-0"])
    fails = [each for each in logs if each["event"] == "replicas.redis_fails"]
    assert any(each["problem"].startswith(problem) for each in fails)
    assert len(fails) <= 4  # each of them at most once for each kind of failure


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_server_that_is_not_there_at_the_start_holds_nobody_up(
    server, workers, tmp_path, monkeypatch
):
    monkeypatch.setattr(exchange, "_UNSETTLED_SECONDS", 0.5)
    server.kill()
    with capture_logs() as logs:
        async with contextlib.AsyncExitStack() as stack:
            siblings = [Siblings(folder=tmp_path, number=each, count=2) for each in range(workers)]
            one, *_ = [
                await stack.enter_async_context(replica(server, alone=0.0, siblings=each))
                for each in (siblings if workers > 1 else [None])
            ]
            await until(lambda: one.replicas.warm)
            one.now += 1
            if workers == 1:
                await until(lambda: "replicas.alone" in [each["event"] for each in logs])
            server.start()
            await until(lambda: one.replicas.streams.works)
            assert not one.replicas._writer.settled  # others may know more
            await until(lambda: one.replicas._writer.settled)


async def test_what_one_saw_before_the_server_came_is_given_to_the_next(server):
    server.kill()
    async with replica(server) as one:
        await until(lambda: one.replicas.warm)
        serve_many(one)
        server.start()
        await reach(one)
        async with replica(server) as fresh:
            await until(lambda: fresh.replicas.warm)
            assert held(fresh) == held(one)


async def test_who_was_told_by_one_that_may_know_less_takes_nothing_from_others(
    server, monkeypatch
):
    monkeypatch.setattr(copies, "DIGEST_SECONDS", 0.2)
    server.kill()
    async with replica(server) as one, replica(server) as other:
        await until(lambda: one.replicas.warm and other.replicas.warm)
        serve_many(one, seed="left")
        serve_many(other, seed="right")
        both = held(one)["default/pod-0"] | held(other)["default/pod-0"]
        server.start()
        await reach(one, other)
        async with replica(server) as fresh:
            await until(lambda: fresh.replicas.warm)
            assert held(fresh) in (held(one), held(other))
            assert not fresh.replicas._writer.settled
            fresh.replicas._writer.settled = True
            await until(lambda: held(fresh) == held(one) == held(other))
            assert held(fresh)["default/pod-0"] == both


async def test_workers_hear_each_other_by_sockets_and_others_by_the_server(server, tmp_path):
    def worker(number):
        siblings = Siblings(folder=tmp_path, number=number, count=2)
        return replica(server, siblings=siblings)

    async with worker(0) as one, worker(1) as two, replica(server) as elsewhere:
        everyone = (one, two, elsewhere)
        for each in everyone:
            await each.hears(2)
            await until(lambda each=each: each.replicas.streams.known == 2)
            each.replicas._heartbeat()
            assert each.replicas.known == each.replicas.reached == 2
        await reach(one, two, number=2)
        one.send("pod-1", "a", PROMPT)
        for each in (two, elsewhere):
            await until(lambda each=each: each.in_flight_here() == {"a": "pod-1"})
        server.kill()
        await until(lambda: two.metrics()[REACHED] == 1)
        one.send("pod-0", "b", PROMPT)
        await until(lambda: two.in_flight_here() == {"a": "pod-1", "b": "pod-0"})


async def test_two_pickers_decide_as_one(server, tmp_path):
    """Prompts that were sent through one go to the same pods when they are sent through the other.

    By chance all eight would in one of 256 runs.
    """
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "password").write_text("open sesame")
    (tmp_path / "endpoints.yaml").write_text(
        "endpoints:\n"
        + "".join(
            f"- {{name: pod-{number}, address: 127.0.0.{number + 1}, port: 1}}\n"
            for number in range(2)
        )
    )
    server.do("CONFIG", "SET", "requirepass", "open sesame")
    words = (
        *("--endpoints-file", "endpoints.yaml", "--secure-serving=false", "--zap-encoder=json"),
        *("--hash-secret-file", "secret", "--replicas", server.address),
        *("--replicas-password-file", "password"),
    )
    async with contextlib.AsyncExitStack() as stack:
        channels, pages = [], []
        for number in range(2):
            lines = await stack.enter_async_context(forked_picker(words, tmp_path))
            await said(lines, "replicas.warm" if number else "replicas.first")
            serving = await said(lines, "serving")
            channel = grpc.aio.insecure_channel(f"{HERE}:{serving['grpc_port']}")
            channels.append(await stack.enter_async_context(channel))
            pages.append(f"http://{HERE}:{serving['metrics_port']}/metrics")
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for page in pages:
            await shows(session, page, "warmpick_replicas_heard", 1)
            await shows(session, page, REACHED, 1)
        chosen = [await answered(channels[0], number) for number in range(8)]
        await shows(session, pages[1], "warmpick_replica_facts_applied_total", 16)
        assert [await answered(channels[1], number) for number in range(8)] == chosen
        server.kill()
        async with session.get(pages[0].replace("/metrics", "/readyz")) as ready:
            assert ready.status == 200
        assert [await answered(channels[0], number) for number in range(8)] == chosen


async def test_a_replica_that_stops_says_so(server):
    async with replica(server) as one:
        async with replica(server):
            await one.hears()
        await one.hears(0)


async def test_what_is_known_of_caches_outlives_all_replicas(server):
    async with replica(server) as one:
        async with replica(server) as other:
            await until(lambda: one.replicas.warm and other.replicas.warm)
            serve_many(one)
            one.send("pod-1", "a", text(300))
            one.apply(ResponseNamed(RequestId("a"), "resp_1"))
            await until(lambda: held(one) == held(other) and other.fleet.responses.state())
            known = held(one)["default/pod-0"]
        await one.hears(0)
    assert known
    (kept,) = [key for key in server.do("KEYS", "*") if key.endswith(b":kept")]
    assert 0 < server.do("TTL", kept) <= 600
    with capture_logs() as logs:
        async with replica(server) as fresh:
            await until(lambda: fresh.replicas.warm)
            assert held(fresh)["default/pod-0"] == known
            home = fresh.pod("pod-1").endpoint.engine
            assert fresh.fleet.responses.engine_of("resp_1", fresh.now) == home
    assert "replicas.warm" in [each["event"] for each in logs]


async def test_what_is_kept_has_responses_too_if_engines_report_their_caches_themselves(server):
    async with replica(server) as one:
        await until(lambda: one.replicas.warm)
        for pod in ("pod-0", "pod-1"):
            one.apply(CacheFeedUp(one.pod(pod).endpoint.id, complete=True))
        one.send("pod-1", "a", text(300))
        one.apply(ResponseNamed(RequestId("a"), "resp_1"))
    async with replica(server) as fresh:
        await until(lambda: fresh.replicas.warm)
        home = fresh.pod("pod-1").endpoint.engine
        assert fresh.fleet.responses.engine_of("resp_1", fresh.now) == home


@pytest.mark.parametrize("knows", [True, False])
async def test_what_a_settled_replica_says_counts_before_what_is_kept(server, knows):
    async with replica(server) as one:
        await until(lambda: one.replicas._writer.settled)
        for pod in ("pod-0", "pod-1"):
            one.apply(CacheFeedUp(one.pod(pod).endpoint.id, complete=True))
        await one.replicas._keeper.keep()
        one.send("pod-1", "a", text(300))
        one.apply(ResponseNamed(RequestId("a"), "resp_1"))
        one.replicas._writer.settled = knows
        async with replica(server) as fresh:
            await until(lambda: fresh.replicas.warm)
            home = fresh.pod("pod-1").endpoint.engine if knows else None
            assert fresh.fleet.responses.engine_of("resp_1", fresh.now) == home


async def test_it_is_written_from_time_to_time_by_one(server, monkeypatch):
    monkeypatch.setattr(keeping, "KEEP_SECONDS", 0.05)
    async with two(server) as (one, other):
        await until(lambda: server.do("KEYS", "*:kept"))
        serve_many(one)
        await until(lambda: held(one) == held(other))


async def test_one_whose_memory_is_full_leaves_that_to_another(server, monkeypatch):
    monkeypatch.setattr(keeping, "KEEP_SECONDS", 0.05)
    small = 100 * (HELD_BYTES + HASH_BYTES)
    async with replica(server) as one:
        other = Started(redis=redis_server(server.address), index_bytes=small)
        while other.replicas._writer.own > one.replicas._writer.own:  # the lowest number writes
            other = Started(redis=redis_server(server.address), index_bytes=small)
        other.start()
        task = asyncio.ensure_future(other.run())
        try:
            await settled(one, other)
            serve_many(one, 100)
            await until(lambda: all(each.full for each in peers(one)))
            server.do("DEL", *server.do("KEYS", "*:kept"))
            async with asyncio.timeout(DEADLINE):
                while await kept_hashes(one) != held(one)["default/pod-0"]:
                    await asyncio.sleep(0.01)
            assert held(other) != held(one)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await other.stop()


async def test_replicas_that_stop_at_once_leave_what_they_know(server):
    every = [Started(redis=redis_server(server.address)) for _ in range(3)]
    for each in every:
        each.start()
    tasks = [asyncio.ensure_future(each.run()) for each in every]
    try:
        await settled(*every)
        serve_many(every[0])
        await until(lambda: all(held(each) == held(every[0]) for each in every))
    finally:
        await asyncio.gather(*(each.stop() for each in every))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with replica(server) as fresh:
        await until(lambda: fresh.replicas.warm)
        assert held(fresh) == held(every[0])


async def test_what_is_being_written_as_the_last_begins_is_whole_and_so_is_that(server):
    async with replica(server) as one:
        await settled(one)
        keeper = one.replicas._keeper
        await asyncio.gather(keeper.keep(), keeper.keep_last())
        assert len(await keeper.kept()) == 1 + len(one.fleet.pods.values())


async def kept_hashes(rig):
    """What is kept of the first endpoint."""
    kept = [each for each in await rig.replicas._keeper.kept() if isinstance(each, ContentsReply)]
    return {each for fact in kept[:1] for each in read_words(fact.hashes)}


@pytest.mark.parametrize("what", ["garbage", "another kind", "another pool", "another start"])
async def test_what_is_kept_and_is_not_right_is_left(server, what):
    async with replica(server) as one:
        await until(lambda: one.replicas.warm)
        serve_many(one)
    (kept,) = server.do("KEYS", "*:kept")
    more = {}
    if what == "garbage":
        server.do("RPUSH", kept, "garbage")
    elif what == "another kind":
        server.do("SET", kept, "garbage")
    elif what == "another pool":
        server.do("RENAME", kept, kept.replace(b"/pool}", b"/other}"))
        more = {"pool": "other"}
    async with replica(server, **more) as fresh:
        if what == "another start":
            fresh.report("pod-0", started_at=5.0)
        await until(lambda: fresh.replicas.warm)
        assert held(fresh)["default/pod-0"] == set()
