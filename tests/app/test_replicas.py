"""Replicas that exchange what they see over real sockets, in one process and in two."""

import asyncio
import contextlib
import math
import time
from math import inf

import aiohttp
import grpc
import msgspec
import pytest
from structlog.testing import capture_logs

from epp.adapters.replicas.settings import PeerAddress, Siblings
from epp.errors import ConfigError
from epp.gateway.processes import free_port
from epp.model.endpoint import EndpointId
from epp.model.quote import Quote
from epp.model.request import RequestId, Usage
from epp.model.request_events import Finished, FirstToken
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.line import MAX_SHARED, Line
from epp.protocol.replicas.facts import WaitingFact, WaitingHead
from tests.adapters.ext_proc_peer import answered
from tests.app.replica_rig import DEADLINE, HERE, SECRET, Started, started, two
from tests.processes import forked_picker, said
from tests.strategies import request, text
from tests.tasks import until

PROMPT = text(400)
UNKNOWN = 'warmpick_replica_dropped_total{reason="unknown_kind"}'


async def check_each_knows_what_the_other_sees(one, other):
    """Have two see something; nothing that a replica heard is told on."""
    one.send("pod-1", "a", PROMPT)
    other.send("pod-0", "b", PROMPT)
    both = {"a": "pod-1", "b": "pod-0"}
    await until(lambda: one.in_flight_here() == other.in_flight_here() == both)
    assert other.cached(PROMPT) == one.cached(PROMPT)
    for event in (FirstToken(RequestId("a")), Finished(RequestId("a"), Usage(400, 5, 0))):
        one.apply(event)
    await until(lambda: other.in_flight_here() == {"b": "pod-0"})
    for each, applied in ((one, 1), (other, 3)):
        metrics = each.metrics()
        assert metrics["warmpick_replica_facts_applied_total"] == applied
        assert metrics["warmpick_replica_messages_missing"] == 0
        assert each.dropped() == 0


async def test_what_one_sees_the_other_knows_and_says_it_to_nobody():
    async with two() as (one, other):
        await check_each_knows_what_the_other_sees(one, other)


async def test_the_end_of_a_replica_that_is_killed_is_guessed():
    async with two() as (one, other):
        one.send("pod-1", "a", PROMPT, max_tokens=5)
        await until(lambda: other.in_flight_here() == {"a": "pod-1"})
        one.replicas.mesh.close()
        other.now += 11
        await other.hears(0)
        assert other.in_flight("a").unobserved
        other.now += 600
        other.ask()
        assert other.in_flight_here() == {}


async def test_a_replica_that_stops_says_so():
    async with started() as one:
        async with started(one.port):
            await one.hears()
        await one.hears(0)


async def test_what_a_replica_saw_just_before_it_stopped_is_known():
    async with started() as one:
        async with started(one.port) as other:
            await until(lambda: other.metrics()["warmpick_replicas_reached"] == 1)
            other.send("pod-0", "a", PROMPT)
            other.apply(Finished(RequestId("a"), Usage(400, 5, 0)))
        await until(lambda: one.cached(PROMPT) == other.cached(PROMPT) != {})


async def test_a_replica_that_is_gone_is_answered_no_more():
    async with started() as one:
        async with started(one.port):
            await one.hears()
            assert one.replicas._replies
        one.now += 1000
        await until(lambda: not one.replicas._replies)


async def test_the_lag_of_messages_is_measured():
    async with two() as (one, _):
        await until(lambda: one.metrics()["warmpick_replica_lag_seconds_count"] > 0)


async def test_alone_is_said_once_and_no_longer_alone_once():
    with capture_logs() as logs:
        async with started(alone=0.0) as one:
            one.now += 1
            await until(lambda: any(each["event"] == "replicas.alone" for each in logs))
            async with started(one.port):
                await one.hears()
                await until(lambda: any(each["event"] == "replicas.heard" for each in logs))
    said = [each["event"] for each in logs if each["event"] != "replicas.listening"]
    assert said[:2] == ["replicas.alone", "replicas.heard"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"secret": b"another secret of sixteen bytes"}, "stranger"), ({"pool": "other"}, "pool")],
)
async def test_replicas_of_another_pool_or_secret_are_not_listened_to(more, reason):
    with capture_logs() as logs:
        async with started() as one, started(one.port, **more) as other:
            other.send("pod-0", "a", PROMPT)
            name = f'warmpick_replica_dropped_total{{reason="{reason}"}}'
            await until(lambda: one.metrics()[name] > 2)
            assert one.in_flight_here() == {}
            assert one.metrics()["warmpick_replicas_heard"] == 0
            await until(lambda: any(each["event"] == "replicas.rejected" for each in logs))
    said = [each["reason"] for each in logs if each["event"] == "replicas.rejected"]
    assert said == [reason]


async def test_a_chain_is_asked_for_over_the_wire():
    async with two() as (one, other):
        one.send("pod-1", "a", PROMPT)
        await until(lambda: other.in_flight_here() == {"a": "pod-1"})
        async with started(one.port, other.port) as third:
            one.meets(third)
            await third.hears(2)
            await until(lambda: third.in_flight_here() == {"a": "pod-1"})  # with the next beat
            one.send("pod-0", "b", PROMPT)
            await until(lambda: third.in_flight_here().get("b") == "pod-0")


def worker(folder, number, *ports, **more):
    """One of two workers of a pod, and of replicas at these ports."""
    return started(*ports, siblings=Siblings(folder=folder, number=number, count=2), **more)


async def test_workers_hear_each_other_by_sockets(tmp_path):
    async with worker(tmp_path, 0) as one, worker(tmp_path, 1) as other:
        for each in (one, other):
            await each.hears()
            await until(lambda each=each: each.metrics()["warmpick_replicas_reached"] == 1)
        one.send("pod-1", "a", PROMPT)
        await until(lambda: other.in_flight_here() == {"a": "pod-1"})
        assert one.port == other.port == 0
        for each in (one, other):
            assert each.dropped() == 0


async def test_workers_of_one_pod_are_alone_without_other_pods(tmp_path):
    with capture_logs() as logs:
        async with worker(tmp_path, 0, free_port()) as one, worker(tmp_path, 1):
            await one.hears()
            one.now += 6
            await until(lambda: any(each["event"] == "replicas.alone" for each in logs))


async def test_a_worker_that_a_name_lists_is_heard_once(tmp_path):
    async with (
        started() as elsewhere,
        worker(tmp_path, 0, elsewhere.port) as one,
        worker(tmp_path, 1, elsewhere.port) as other,
    ):
        here = [PeerAddress(HERE, one.port), PeerAddress(HERE, other.port)]
        for each in (elsewhere, one, other):
            each.addresses.extend(here)
        for each in (elsewhere, one, other):
            await each.hears(2)
        # Its own port, and the other's, are left out once these have said who they are.
        for each in (elsewhere, one, other):
            await until(lambda each=each: each.replicas.known == 2)
        one.send("pod-1", "a", PROMPT)
        for each in (elsewhere, other):
            await until(lambda each=each: each.in_flight_here() == {"a": "pod-1"})


def test_a_secret_that_is_too_short_is_refused():
    with pytest.raises(ConfigError, match="--hash-secret-file"):
        Started(secret=b"short")


async def test_two_pickers_decide_as_one(tmp_path):
    """Prompts that were sent through one go to the same pods when they are sent through the other.

    By chance all eight would in one of 256 runs.
    """
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "endpoints.yaml").write_text(
        "endpoints:\n"
        + "".join(
            f"- {{name: pod-{number}, address: 127.0.0.{number + 1}, port: 1}}\n"
            for number in range(2)
        )
    )
    ports = [free_port(), free_port()]
    words = (
        *("--endpoints-file", "endpoints.yaml", "--secure-serving=false", "--zap-encoder=json"),
        *("--hash-secret-file", "secret", "--replicas", f"{HERE}:{ports[0]},{HERE}:{ports[1]}"),
    )
    async with contextlib.AsyncExitStack() as stack:
        channels, pages = [], []
        for number, port in enumerate(ports):
            lines = await stack.enter_async_context(
                forked_picker((*words, f"--replicas-port={port}"), tmp_path)
            )
            # Who asks a replica that is not warm yet is sent where nothing is known to be cached.
            await said(lines, "replicas.warm" if number else "replicas.first")
            serving = await said(lines, "serving")
            channels.append(
                await stack.enter_async_context(
                    grpc.aio.insecure_channel(f"{HERE}:{serving['grpc_port']}")
                )
            )
            pages.append(f"http://{HERE}:{serving['metrics_port']}/metrics")
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for page in pages:
            await shows(session, page, "warmpick_replicas_heard", 1)
            await shows(session, page, "warmpick_replicas_reached", 1)
        chosen = [await answered(channels[0], number) for number in range(8)]
        await shows(session, pages[1], "warmpick_replica_facts_applied_total", 16)
        assert [await answered(channels[1], number) for number in range(8)] == chosen


async def shows(session, page, name, least):
    """Wait until a metric has a value, at least."""
    end = time.monotonic() + 3 * DEADLINE
    while time.monotonic() < end:
        async with session.get(page) as response:
            lines = (await response.text()).splitlines()
        found = [float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")]
        if found and found[0] >= least:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} is not {least}")


def waits(name, seconds, now, **more):
    asked = request(name, [1], **more)
    made = HeldRequest(asked, Quote(asked, (), ()), now, until=inf, deadline=now + 30)
    made.endpoint_id, made.seconds = EndpointId("default/pod-0"), seconds
    return made


async def test_what_waits_at_one_goes_before_what_comes_later_at_the_other():
    async with two() as (one, other):
        lines = [Line(ageing=0.1), Line(ageing=0.1)]
        for each, line in zip((one, other), lines, strict=True):
            each.replicas.share(line)
        first = waits("first", 2.0, one.now - 50, priority=1)
        lines[0].add(first)
        small = waits("small", 0.1, other.now)
        await until(lambda: lines[1].yields(small, small.endpoint_id, other.now))
        assert lines[1].seconds_of_all(other.now) == 2.0
        assert not lines[0].yields(first, first.endpoint_id, one.now)
        other.now += 0.04  # told again and again
        await until(lambda: lines[1].yields(small, small.endpoint_id, other.now + 0.04))
        lines[0].remove(first)
        await until(lambda: not lines[1].yields(small, small.endpoint_id, other.now))
        assert other.metrics()["warmpick_replica_messages_missing"] == 0


@pytest.mark.parametrize(
    "heads",
    [
        [[0, "default/pod-0", math.nan, 1.0, 0.0, None, None]],
        [[0, "default/pod-0", -1.0, 1.0, 0.0, None, None]],
        [[0, "default/pod-0", 1.0, math.inf, 0.0, None, None]],
        [[0, 5, 1.0, 1.0, 0.0, None, None]],
        [[0, "default/pod-0"]],
        "heads",
    ],
    ids=repr,
)
async def test_lines_that_cannot_be_are_counted(heads):
    async with two() as (one, other):
        line = Line(ageing=0.1)
        other.replicas.share(line)
        writer = one.replicas._writer
        message = msgspec.msgpack.decode(writer.to_all([], one.now))
        message[-1] = [[37, 1.0, heads]]
        one.replicas.mesh.send(msgspec.msgpack.encode(message))
        await until(lambda: other.metrics()[UNKNOWN] == 1)
        assert line.seconds_of_all(other.now) == 0.0


async def test_of_two_lines_in_a_message_the_last_counts():
    async with two() as (one, other):
        line = Line(ageing=0.1)
        other.replicas.share(line)
        head = WaitingHead(0, EndpointId("default/pod-0"), 0.0, 1.0, 0.0, None, None)
        facts = [WaitingFact(seconds, [head]) for seconds in (1.0, 2.0)]
        one.replicas.mesh.send(one.replicas._writer.to_all(facts, one.now))
        await until(lambda: line.seconds_of_all(other.now) == 2.0)


async def test_many_that_wait_are_told_of_in_part():
    async with two() as (one, other):
        lines = [Line(ageing=0.1), Line(ageing=0.1)]
        for each, line in zip((one, other), lines, strict=True):
            each.replicas.share(line)
        for number in range(3 * MAX_SHARED):
            each = waits(f"{number}", 1.0, one.now - 50)
            each.endpoint_id = EndpointId(f"default/pod-{number}")
            lines[0].add(each)
        last = waits("last", 1.0, other.now)
        await until(lambda: lines[1].yields(last, last.endpoint_id, other.now))
        known = [
            lines[1].yields(last, EndpointId(f"default/pod-{number}"), other.now)
            for number in range(3 * MAX_SHARED)
        ]
        assert sum(known) == MAX_SHARED
        assert lines[1].seconds_of_all(other.now) == 3 * MAX_SHARED
