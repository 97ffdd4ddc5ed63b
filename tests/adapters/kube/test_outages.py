"""The API server is away, or takes rights away: one asks for all, and all hear of the end of it."""

import asyncio
import contextlib
import time

import msgspec
import pytest

from epp.adapters.kube.retry_queue import RetryQueue
from epp.protocol.kube.resources import pods
from tests.adapters.kube.rig import (
    CRDS,
    QUICK,
    connected,
    discovering,
    following,
    pod,
    rewrite,
    watched,
)
from tests.kubeapi import FakeKubernetes, faults
from tests.protocol.kube.objects import pool

SPACES = ("default", "one", "two", "three", "four", "five")
NEVER = 3600.0
"""Seconds that no test waits for."""
PATIENT = msgspec.structs.replace(QUICK, max_backoff=NEVER, refused_delay=NEVER)
"""Only what is refused at once may be asked again."""
RULE = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"]}


def events(logs, *names):
    return [each["event"] for each in logs if each["event"] in names]


@contextlib.asynccontextmanager
async def everywhere(api, connection, settings=PATIENT):
    """Follow the pods of several namespaces, which are watched."""
    for space in SPACES[1:]:
        api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
    async with contextlib.AsyncExitStack() as stack:
        watches = [following(connection, pods(space), settings=settings) for space in SPACES]
        seen = [await stack.enter_async_context(watch) for watch in watches]
        await all_watched(api)
        yield seen


async def all_watched(api, after=0):
    for space in SPACES:
        await api.asked(
            lambda ask, space=space: (ask.verb, ask.namespace) == ("watch", space), after=after
        )


async def all_hear(api, seen):
    """Something new is heard of in every namespace."""
    for space in SPACES:
        new = pod("new")
        api.put(new | {"metadata": new["metadata"] | {"namespace": space}})
    for each in seen:
        await each.until(lambda each=each: "new" in each.names)


async def refused_often(api, times, after):
    """Wait until the API server was asked so often."""
    numbers = iter(range(times))
    await api.asked(lambda _: next(numbers, times) >= times - 1, after=after)


async def test_all_hear_soon_after_an_outage(api, connection, logs):
    async with everywhere(api, connection) as seen:
        api.fail(faults.dropped(), times=None)
        before = len(api.requests)
        api.drop_watches()
        await refused_often(api, 40, before)
        api.mend()
        await all_hear(api, seen)
    assert events(logs, "kube.unreachable", "kube.reachable", "kube.disconnected") == [
        "kube.unreachable",
        "kube.reachable",
    ]


async def test_all_hear_soon_after_a_time_without_a_listener(api, connection, logs):
    async with everywhere(api, connection) as seen:
        await api.down()
        while not events(logs, "kube.unreachable"):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", api.server.port)
        await api.up()
        await all_hear(api, seen)


async def test_one_asks_for_all_during_an_outage(api, connection):
    settings = msgspec.structs.replace(PATIENT, probe_delay=0.05)
    async with everywhere(api, connection, settings) as seen:
        api.fail(faults.dropped(), times=None)
        before, began = len(api.requests), time.monotonic()
        api.drop_watches()
        await refused_often(api, 40, before)
        # Each watch asks once by itself when it breaks off; aiohttp sends what is reset twice.
        probes = 40 / 2 - len(SPACES)
        assert time.monotonic() - began >= (probes - 1) * 0.05 / 2
        api.mend()
        await all_hear(api, seen)


async def test_rights_that_are_given_back_are_noticed_by_all(api, tmp_path, logs):
    token = api.token("epp", [RULE])
    async with (
        connected(api, tmp_path, token=token) as connection,
        everywhere(api, connection) as seen,
    ):
        rules = list(api.access.rules["epp"])
        api.access.rules["epp"].clear()
        before = len(api.requests)
        api.drop_watches()
        await refused_often(api, 40, before)
        api.access.rules["epp"].extend(rules)
        await all_hear(api, seen)
        assert [each.lists for each in seen] == [1] * len(SPACES)
    assert events(logs, "kube.forbidden") == ["kube.forbidden"] * len(SPACES)


async def test_a_token_that_is_known_again_is_noticed_by_all(api, tmp_path, logs):
    token = api.token("epp", [RULE])
    async with (
        connected(api, tmp_path, token=token) as connection,
        everywhere(api, connection) as seen,
    ):
        identity = api.access.tokens[token]
        api.revoke(token)
        before = len(api.requests)
        api.drop_watches()
        await refused_often(api, 40, before)
        api.access.tokens[token] = identity
        await all_hear(api, seen)
    assert len(events(logs, "kube.credentials_renewed")) == 1


async def test_an_overloaded_server_is_left_alone_for_longer_each_time(api, connection):
    settings = msgspec.structs.replace(QUICK, max_backoff=NEVER)
    api.fail(faults.unavailable(), verb="list", times=6)
    began = time.monotonic()
    async with following(connection, settings=settings) as seen:
        await seen.until(lambda: seen.lists)
    assert time.monotonic() - began >= sum(0.01 * 2**failure for failure in range(6)) / 2


async def test_rights_that_were_never_there_are_asked_for_less_and_less(api, tmp_path):
    token = api.token("epp", [])
    settings = msgspec.structs.replace(QUICK, refused_delay=NEVER)
    began = time.monotonic()
    async with (
        connected(api, tmp_path, token=token) as connection,
        following(connection, settings=settings) as seen,
    ):
        await refused_often(api, 6, 0)
        api.token("epp", [RULE])
        await seen.until(lambda: seen.lists)
    assert time.monotonic() - began >= sum(0.01 * 2**failure for failure in range(6)) / 2


async def test_a_turn_comes_after_a_pause_in_order():
    queue, admitted = RetryQueue(), []
    loop = asyncio.get_running_loop()

    def now():  # in the milliseconds of the loop's timers, which may be early by another clock
        return round(loop.time() * 1000)

    async def wait(number):
        await queue.wait(0.02)
        admitted.append((number, now()))

    began = now()
    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(wait(number))
    assert [number for number, _ in admitted] == [0, 1, 2, 3]
    assert all(at - began >= (number + 1) * 10 for number, at in admitted)


async def test_opening_admits_all_and_who_goes_away_takes_no_turn():
    queue = RetryQueue()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        gone = tasks.create_task(queue.wait(NEVER))
        waiting = [tasks.create_task(queue.wait(NEVER)) for _ in range(3)]
        await asyncio.sleep(0)  # all of them wait
        gone.cancel()
        queue.release()
        await asyncio.gather(*waiting)
    assert gone.cancelled()


async def test_who_goes_away_costs_the_others_no_pause():
    queue, ended = RetryQueue(), []

    async def end(what, waiting):
        await waiting
        ended.append(what)

    async with asyncio.TaskGroup() as tasks:
        gone = [tasks.create_task(queue.wait(0.01)) for _ in range(2)]
        tasks.create_task(end("one pause", queue.wait(0.01)))
        tasks.create_task(end("the longest pause", asyncio.sleep(0.01)))
        await asyncio.sleep(0)  # all of them wait
        for each in gone:
            each.cancel()
    assert ended == ["one pause", "the longest pause"]


async def test_after_an_outage_a_queue_is_as_before_it():
    queue = RetryQueue()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        opened = tasks.create_task(queue.wait(0.01))
        await asyncio.sleep(0)
        queue.release()
        await opened
        later = tasks.create_task(queue.wait(NEVER))
        await RetryQueue().wait(0.02)  # the pause that was broken off would be over
        assert not later.done()
        queue.release()
        for _ in range(2):
            await queue.wait(0.01)


REWRITES = {"verb": "list", "resource": "inferencemodelrewrites"}


@pytest.fixture
async def routed():
    """An API that has the rewrite of a pool."""
    async with FakeKubernetes(crds=CRDS) as made:
        made.put(pool())
        made.put(rewrite("r", (["m"], {"n": 1})))
        yield made


@pytest.mark.parametrize(
    "fault", [faults.too_many(retry_after=0), faults.internal(), faults.unavailable()]
)
async def test_rewrites_that_cannot_be_listed_yet_are_waited_for(fault, routed, tmp_path):
    """What is routed without one goes to a model that the pool may not have."""
    later = asyncio.Event()
    routed.fail(fault, **REWRITES, times=2)  # one for each group
    routed.fail(faults.held_until(later), **REWRITES, times=None)
    settings = msgspec.structs.replace(QUICK, refused_delay=NEVER)
    async with discovering(routed, tmp_path, reflector=settings) as (discovery, fleet):
        await fleet.until(lambda: fleet.listed)
        await watched(routed, "inferenceobjectives")
        assert not discovery.ready
        later.set()
        await fleet.until(lambda: discovery.ready)
        assert discovery.routing.exact


async def test_a_kind_that_is_never_listed_is_not_waited_for_in_the_end(routed, tmp_path):
    routed.fail(faults.internal(), **REWRITES, times=None)
    async with discovering(routed, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        assert not discovery.routing.exact
