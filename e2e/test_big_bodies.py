"""Requests of 20 MB pass a picker byte for byte, and hold up nobody but themselves."""

import asyncio
import json
import random

import psutil
import pytest
import pytest_asyncio

from e2e.corridor import CHAT, Plan, chat, corridor, until
from e2e.press import WAITS, digest, printing
from tests.native.built import needs

TRANSPORTS = ("native", "grpcio")
SIZE = 20 << 20
COMPLETIONS = "/v1/completions"
RUNNING = "llm_d_epp_request_running"
MAX_MEMORY = 6 * SIZE
SMALL = chat("hello")
WORDS = "so it goes on, \"quoted\" and 'not', grüße 😀, and on and on without end\n"
TURNS = [{"role": ("user", "assistant")[turn % 2], "content": WORDS * 150} for turn in range(1900)]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0" * 2**21}}


def large():
    """Bodies as clients make them, by what is in them."""
    words = WORDS * (SIZE // len(WORDS))
    ids = random.Random(1).choices(range(150_000), k=SIZE // 8)
    look = [{"type": "text", "text": "what is this?"}, PICTURE]
    return {
        "a long message": (CHAT, chat(words)),
        "a conversation": (CHAT, {"messages": TURNS, "model": "m", "tools": [{"type": "x"}]}),
        "a picture": (CHAT, {"messages": [{"role": "user", "content": look}], "model": "m"}),
        "token ids": (COMPLETIONS, {"model": "m", "prompt": ids}),
        "no API": ("/v1/score", {"model": "m", "text_1": words}),
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def press():
    async with printing() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TRANSPORTS)
async def gateway(request, press, tmp_path_factory):
    plan = Plan(others=(press.target,), picker_flags=(f"--transport={request.param}",))
    async with corridor(plan, tmp_path_factory.mktemp("bodies")) as made:
        yield made


@pytest.fixture(scope="module")
def bodies():
    return {name: (path, json.dumps(body).encode()) for name, (path, body) in large().items()}


async def in_pieces(data, seed):
    """Send as a client that has it in pieces of all sizes."""
    draw, at = random.Random(seed), 0
    while at < len(data):
        size = draw.choice((1, 100, 5_000, 70_000, 300_000))
        yield data[at : at + size]
        at += size


async def send(gateway, path, data, seed=0, **headers):
    """Send a body; return what the model server got."""
    async with gateway.client.post(
        gateway.url + path, data=in_pieces(data, seed), headers=headers
    ) as response:
        assert response.status == 200, await response.text()
        return await response.text()


async def small_until(done, gateway):
    """Send small requests one after another until something is done; how many that were."""
    count = 0
    while not done.done() or not count:
        answer = await gateway.post(CHAT, SMALL)
        assert answer.status == 200
        count += 1
    return count


async def test_a_server_that_does_not_read_is_waited_for(gateway, press, bodies):
    """First of all, as it measures what a picker has that has held but one body before."""
    path, data = bodies["a long message"]
    press.waiting, press.reading = 0, asyncio.Event()
    assert await send(gateway, path, data) == digest(data)
    picker = psutil.Process(gateway.picker.pid)
    before = picker.memory_info().rss
    sending = asyncio.gather(
        *(send(gateway, path, data, seed, **{WAITS: "1"}) for seed in range(3))
    )
    await until(lambda: asyncio.sleep(0, press.waiting == 3))
    for _ in range(20):
        assert (await gateway.post(CHAT, SMALL)).status == 200
    assert picker.memory_info().rss - before < MAX_MEMORY
    press.reading.set()
    assert await sending == [digest(data)] * 3
    await until(gateway.idle)


async def test_byte_for_byte(gateway, bodies):
    asked = enumerate(bodies.values())
    sending = asyncio.gather(*(send(gateway, path, data, seed) for seed, (path, data) in asked))
    await small_until(sending, gateway)
    assert await sending == [digest(data) for _, data in bodies.values()]
    await until(gateway.idle)


@needs("epp.protocol.bodies.body_reader", "names that are replaced in long bodies")
@pytest.mark.parametrize("name", ["a conversation", "token ids"])
async def test_a_renamed_one_changes_in_one_place(gateway, bodies, name):
    path, data = bodies[name]
    rewrite = {"x-llm-d-model-name-rewrite": "another"}
    got = await send(gateway, path, data, **rewrite)
    assert got == digest(data.replace(b'"model": "m"', b'"model": "another"'))


async def test_clients_that_go_amid_one_leave_nothing(gateway, bodies):
    path, data = bodies["a conversation"]
    for part in (1 << 16, SIZE // 2, SIZE - 9):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data[:part])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert await reader.read() == b""
    assert await send(gateway, path, data) == digest(data)
    await until(gateway.idle)
    await gateway.metric_becomes(0, RUNNING)
