"""Requests that do not end, over either transport: what they hold, and for how long."""

import asyncio
import json
import os
import subprocess
import sys

import grpc
import pytest

from epp.adapters.extproc.limits import PeerLimits
from epp.adapters.extproc.transports import server_class
from epp.protocol.extproc.record import Outcome
from epp.system import memory
from epp.system.memory import memory_limit
from tests.adapters.ext_proc_peer import (
    BUFFERED,
    CHAT,
    DEADLINE,
    DECISION,
    NONE,
    Peer,
    body,
    head,
    kind,
    serving,
    streamed,
)
from tests.adapters.raw_peer import greeted, serves
from tests.native import wire
from tests.native.built import needs_native
from tests.tasks import until

PIECE = b'{"messages":[{"role":"user","content":"' + b"x" * 60_000
"""The beginning of a body whose model is not known."""


async def upload(channel, pieces):
    """Send so many pieces of a request that does not end."""
    stream = Peer(channel, 6 * DEADLINE)
    rest = [body(b"x" * len(PIECE), end=False)] * (pieces - 1)
    await stream.send(head(), body(PIECE, end=False), *rest)
    return stream


async def refusal(stream):
    """The status and the error with which a stream is answered and ended."""
    reply = await stream.receive()
    assert kind(reply) == "immediate_response"
    said = reply.immediate_response
    assert await stream.rest() == []
    return said.status.code, json.loads(said.body)["error"]


async def test_the_largest_are_refused_where_all_hold_too_much(serve, director):
    async with serve(director, max_held_bytes=20 * len(PIECE)) as (_, channel):
        small = [await upload(channel, 1) for _ in range(8)]
        large = await upload(channel, 13)  # 21 pieces in all
        status, said = await refusal(large)
        assert (status, said["type"]) == (429, "overloaded_error")
        assert "hold more than" in said["message"]
        for stream in small:
            await stream.send(body(b'"}],"model":"m"}'))
            assert kind(await stream.receive()) == "request_headers"
        await until(lambda: director.ends() == [Outcome.REJECTED])


async def test_a_request_that_is_refused_as_it_ends_waits_for_no_decision(serve, director):
    director.answer = None
    async with serve(director, max_held_bytes=len(PIECE)) as (_, channel):
        stream = await upload(channel, 1)
        await stream.send(body(b'"}],"model":"m"}'))
        assert (await refusal(stream))[0] == 429
        assert [pending.cancelled for pending in director.pending] == [True]


MIB = 1 << 20
WIDE = PeerLimits(stream_window=16 * MIB)


@needs_native  # grpcio hands over whole messages
async def test_a_message_that_has_not_ended_is_held(director):
    made = serving(server_class("native"), director, max_held_bytes=2 * MIB, limits=WIDE)
    async with made as (server, _), greeted(server) as peer:
        peer.begin(1, head((BUFFERED, NONE)))
        begun = wire.message(bytes(60 * MIB))[: 3 * MIB]
        peer.say(wire.data(1, begun))
        await peer.read_until(lambda: 1 in peer.ended)
        assert peer.replies[1][-1].immediate_response.status.code == 429
        assert director.ends() == [Outcome.REJECTED]
        await serves(server)


@needs_native  # as above
async def test_a_message_counts_once(director):
    made = serving(server_class("native"), director, max_held_bytes=5 * MIB, limits=WIDE)
    async with made as (server, _), greeted(server, window=WIDE.stream_window) as peer:
        peer.say(wire.window_update(0, WIDE.stream_window))
        data = json.dumps({"model": "m", "prompt": "x" * (4 * MIB)}).encode()
        peer.begin(1, head((BUFFERED, NONE), path="/v1/completions"), body(data))
        replies = await peer.replied(1, 2)
        assert list(map(kind, replies)) == ["request_headers", "request_body"]


@needs_native  # grpcio reads nothing while a decision is pending
async def test_a_request_that_is_gone_holds_nothing_if_its_decision_comes(director):
    director.answer = None
    made = serving(server_class("native"), director, max_held_bytes=3 * MIB, limits=WIDE)
    async with made as (server, _), greeted(server) as peer:
        for stream in (1, 3):
            peer.begin(stream, head(), body())
            await until(lambda due=stream: len(director.pending) > due // 2)
            peer.say(wire.data(stream, wire.message(bytes(60 * MIB))[: 2 * MIB]))
            await peer.works()
            peer.say(wire.reset(stream))
            await until(lambda due=stream: len(director.records) > due // 2)
            director.pending[-1].decided(DECISION)
        assert director.ends() == [Outcome.ABORTED] * 2


async def test_what_ended_holds_nothing(serve, director):
    async with serve(director, max_held_bytes=20 * len(PIECE)) as (_, channel):
        for number in range(10):
            stream = await upload(channel, 10)
            if number % 2:
                stream.call.cancel()
            else:
                await stream.send(body(b'"}],"model":"m"}'))
                assert kind(await stream.receive()) == "request_headers"
                ended = False
                while not ended:
                    _, ended = streamed(await stream.receive())
            await until(lambda due=number // 2 + number % 2: len(director.records) >= due)
        assert Outcome.REJECTED not in director.ends()


async def test_requests_that_do_not_end_in_time_get_408(serve, director):
    patient = serve(director, request_timeout=0)
    async with patient as (_, waiting), serve(director, request_timeout=0.5) as (server, channel):
        kept = await upload(waiting, 1)
        silent, headless = await upload(channel, 1), Peer(channel)
        await headless.send()
        status, said = await refusal(silent)
        assert (status, said["message"]) == (408, "the request did not end within 0.5 seconds")
        assert kind(await Peer(channel).ask(head(), body())) == "request_headers"
        headless.call.cancel()
        await until(lambda: server.streams <= 1)
        await kept.send(body(b'"}],"model":"m"}'))
        assert kind(await kept.receive()) == "request_headers"


async def test_an_answer_may_take_longer_than_its_request(serve, director):
    async with serve(director, request_timeout=0.5) as (_, channel):
        routed, silent = Peer(channel), await upload(channel, 1)
        assert kind(await routed.ask(head(), body())) == "request_headers"
        assert (await refusal(silent))[0] == 408
        assert streamed(await routed.receive()) == (CHAT, True)
        await routed.call.done_writing()
        assert await routed.call.code() is grpc.StatusCode.OK


async def test_a_body_in_one_message_is_read_in_turns(serve, director):
    data = json.dumps({"model": "m", "messages": [{"role": "u", "content": "x" * (8 << 20)}]})
    async with serve(director) as (_, channel):
        stream = Peer(channel, 6 * DEADLINE)
        reply = await stream.ask(head((BUFFERED, NONE)), body(data.encode()))
        assert kind(reply) == "request_headers"
        assert kind(await stream.receive()) == "request_body"
        await stream.call.done_writing()
        async with asyncio.timeout(DEADLINE):
            assert await stream.call.code() is grpc.StatusCode.OK


def test_the_limit_of_memory_is_what_there_is():
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 1 << 20 < memory_limit() <= installed


@pytest.mark.parametrize("group", ["/", "/pods/picker", None])
def test_a_control_group_limits_memory(tmp_path, monkeypatch, group):
    own = tmp_path / "cgroup"
    if group is not None:
        own.write_text(f"0::{group}\n")
        inner = tmp_path / "fs" / group.lstrip("/")
        inner.mkdir(parents=True)
        (inner / "memory.max").write_text("max\n")
    (tmp_path / "fs").mkdir(exist_ok=True)
    (tmp_path / "fs" / "memory.max").write_text("2147483648\n")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "fs")
    monkeypatch.setattr(memory, "_OWN_CGROUP", own)
    assert memory_limit() == 2 << 30


TRIMMED = """
from epp.system.memory import keep_freed_memory, trim_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

keep_freed_memory()
held = [b"%d" % number * (1 << 14) for number in range(1000, 5096)]
last = b"last" * (1 << 14)
before = resident()
del held
trim_freed_memory()
print(before - resident())
"""


def test_memory_goes_back_from_amid_the_heap():
    said = subprocess.run(
        [sys.executable, "-c", TRIMMED], capture_output=True, text=True, check=True
    )
    assert int(said.stdout) > 128 << 20
