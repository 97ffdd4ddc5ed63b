"""The simulator's KV events on real sockets; that they are vLLM's is shown in test_sim_oracle."""

import asyncio
import contextlib

import msgspec
import pytest
import zmq
import zmq.asyncio
from model_server.simulator.cli import parse
from model_server.simulator.kv_config import KvEventsConfig
from model_server.simulator.settings import Limits

from tests.loopbacks import loopbacks

from .simulated import DEADLINE, LONG, post, serving

BLOCK = 16
TOPIC = "kv@pod@sim-model"
ON = KvEventsConfig(
    enable_kv_cache_events=True,
    endpoint="tcp://*:0",
    replay_endpoint="tcp://127.0.0.1:0",
    topic=TOPIC,
)
END = b"\xff" * 8


async def receive(socket):
    async with asyncio.timeout(DEADLINE):
        return await socket.recv_multipart()


def decode(frames):
    """Number and events of a message."""
    topic, number, payload = frames
    assert topic == TOPIC.encode()
    seconds, events, rank = msgspec.msgpack.decode(payload)
    assert seconds > 1.7e9
    assert rank == 0
    return int.from_bytes(number, "big"), events


@contextlib.asynccontextmanager
async def publishing(config=ON, **more):
    """A simulator, a client, and its published sources."""
    async with serving(kv_events=config, **more) as (_, client):
        async with client.get("/kv_event_sources") as response:
            sources = await response.json()
        with zmq.asyncio.Context() as context:
            context.setsockopt(zmq.LINGER, 0)
            yield client, sources["0"], context


async def replay(context, source, start):
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(source["replay_endpoint"])
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        messages = []
        while (message := await receive(dealer))[-2:] != [END, b""]:
            messages.append(decode(message[1:]))
        return messages


def complete(tokens, **more):
    return {"model": "sim-model", "prompt": tokens, "max_tokens": 1} | more


async def test_what_is_stored_is_published_with_its_tokens():
    async with publishing() as (client, source, context):
        with context.socket(zmq.SUB) as listener:
            listener.subscribe(b"kv@")
            listener.connect(source["endpoint"])
            prompt = list(range(3 * BLOCK))
            messages = []

            async def ask():
                # What is published before a subscription arrives is lost to it.
                for number in range(1000):
                    body = complete([number, *prompt], max_tokens=2 * BLOCK, cache_salt="s")
                    assert (await post(client, "/v1/completions", body))[0] == 200

            asking = asyncio.create_task(ask())
            messages.append(decode(await receive(listener)))
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
        number, events = messages[0]
        again = await replay(context, source, 0)
        assert (number, events) in again
        first = again[0][1][0]
    assert first["type"] == "BlockStored"
    assert first["token_ids"] == [0, *prompt][: 3 * BLOCK]
    assert len(set(first["block_hashes"])) == 3
    assert first["parent_block_hash"] is None
    assert first["extra_keys"] == [["s"], None, None]
    assert (first["block_size"], first["medium"], first["group_idx"]) == (BLOCK, "GPU", 0)
    second = again[1][1][0]  # generated tokens, when their block is full
    assert second["parent_block_hash"] == first["block_hashes"][-1]
    assert len(second["token_ids"]) == BLOCK


async def test_replay_starts_where_it_is_asked_to_and_keeps_so_many():
    few = msgspec.structs.replace(ON, buffer_steps=3)
    async with publishing(few) as (client, source, context):
        for number in range(5):
            await post(client, "/v1/completions", complete([number] * (BLOCK + 1)))
        kept = await replay(context, source, 0)
        assert [number for number, _ in kept] == [2, 3, 4]
        assert await replay(context, source, 3) == kept[1:]
        assert await replay(context, source, 99) == []


@pytest.mark.parametrize("host", loopbacks())
async def test_it_is_published_where_requests_are_answered(host):
    for endpoint in ("tcp://*:0", f"tcp://{host}:0"):
        config = msgspec.structs.replace(ON, endpoint=endpoint, replay_endpoint=endpoint)
        async with publishing(config, host=host.strip("[]")) as (client, source, context):
            assert source["endpoint"].startswith(f"tcp://{host}:")
            context.setsockopt(zmq.IPV6, 1)
            await post(client, "/v1/completions", complete([1] * (BLOCK + 1)))
            assert len(await replay(context, source, 0)) == 1


async def test_eviction_and_reset_are_published():
    tight = Limits(num_gpu_blocks=4, block_size=BLOCK)
    async with publishing(limits=tight) as (client, source, context):
        for number in (1, 2):
            await post(client, "/v1/completions", complete([number] * (2 * BLOCK + 1)))
        status, _, body = await post(client, "/reset_prefix_cache", {})
        assert (status, body) == (200, {"success": True})
        await post(client, "/v1/completions", complete([3] * (BLOCK + 1)))
        events = [event for _, batch in await replay(context, source, 0) for event in batch]
    kinds = [event["type"] for event in events]
    assert kinds == [
        "BlockStored",
        "BlockRemoved",
        "BlockRemoved",
        "BlockStored",
        "AllBlocksCleared",
        "BlockStored",
    ]
    assert events[1] == {
        "type": "BlockRemoved",
        "block_hashes": events[0]["block_hashes"][-1:],
        "medium": "GPU",
        "group_idx": 0,
    }


async def test_adapters_have_a_name_and_a_number():
    async with publishing(lora_modules={"a": "a", "b": "hub/b"}) as (client, source, context):
        body = complete([1] * (BLOCK + 1), model="b")
        await post(client, "/v1/completions", body)
        ((_, (event,)),) = await replay(context, source, 0)
    assert (event["lora_name"], event["lora_id"], event["extra_keys"]) == ("b", 2, [["b"]])


@pytest.mark.parametrize(
    "config", [KvEventsConfig(), KvEventsConfig(enable_kv_cache_events=True, publisher="null")]
)
async def test_nothing_is_published_unasked(config):
    async with serving(kv_events=config) as (_, client):
        async with client.get("/kv_event_sources") as response:
            assert await response.json() == {}
        status, _, _ = await post(client, "/v1/completions", complete(LONG))
        assert status == 200


async def test_a_request_to_send_again_that_makes_no_sense_is_left_out():
    async with publishing() as (client, source, context):
        await post(client, "/v1/completions", complete([1] * (BLOCK + 1)))
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect(source["replay_endpoint"])
            await dealer.send_multipart([b"one", b"two", b"three", b"four"])
        assert len(await replay(context, source, 0)) == 1


def test_the_flag_is_vllms():
    text = '{"enable_kv_cache_events": true, "endpoint": "tcp://*:6000", "topic": "kv@a@b"}'
    config = parse(["--kv-events-config", text]).kv_events
    assert config.publishes
    assert (config.endpoint, config.topic) == ("tcp://*:6000", "kv@a@b")
    assert not parse([]).kv_events.publishes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"endpoint": "udp://*:1"}',
        '{"endpoint": "tcp://x"}',
        '{"replay_endpoint": "tcp://:5"}',
        '{"endpoints": 1}',
        '{"publisher": "nats"}',
        '{"buffer_steps": "many"}',
        '{"buffer_steps": -1}',
        '{"hwm": -1}',
        '{"endpoint": "tcp://*:65536"}',
    ],
)
def test_a_configuration_that_cannot_be_used(text, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(["--kv-events-config", text])
    assert exit_.value.code == 2
    assert "--kv-events-config" in capsys.readouterr().err
