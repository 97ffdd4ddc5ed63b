"""Responses in ten thousand pieces pass a picker byte for byte, fast readers or slow."""

import asyncio
import gzip
import itertools
import json
import random
import zlib
from pathlib import Path

import aiohttp
import psutil
import pytest
import pytest_asyncio

from e2e.corridor import CHAT, Plan, chat, until
from e2e.press import EDITION, Edition, digest, printing

TRANSPORTS = ("native", "grpcio")
COUNT = 10_000
COUNTED = "llm_d_epp_request_output_tokens_count"
REPORT = {"prompt_tokens": 31, "completion_tokens": COUNT}
TEXTS = (" token", "grüße 😀", 'he said \\"usage\\": {', "a\\nb", "{}[],:")
SSE, JSON = {"content-type": "text/event-stream"}, {"content-type": "application/json"}
MAX_MEMORY = 48 << 20
STALLED = 0.5


def buffers(kind):
    """Give the bytes up to which the kernel lets a socket's buffer grow by itself."""
    return int(Path(f"/proc/sys/net/ipv4/{kind}").read_text().split()[2])


# What the kernel holds for the two connections of a response, and what the gateway may hold.
MAX_HELD = 2 * (buffers("tcp_rmem") + buffers("tcp_wmem")) + (16 << 20)
LARGE, LARGE_PIECE = MAX_HELD + (16 << 20), 60_000


def events(end="\n", longest=0):
    texts = (
        text + "x" * (longest if place % 999 == 0 else 0)
        for place, text in zip(range(COUNT), itertools.cycle(TEXTS), strict=False)
    )
    made = [f'data: {{"choices":[{{"delta":{{"content":"{text}"}}}}]}}' for text in texts]
    made += ["data: " + json.dumps({"choices": [], "usage": REPORT}), "data: [DONE]"]
    return "".join(each + 2 * end for each in made).encode()


def document():
    text = "".join(TEXTS) * COUNT
    usage = json.dumps(REPORT)
    return f'{{"choices":[{{"message":{{"content":"{text}"}}}}],"usage":{usage}}}'.encode()


def cut(data, seed):
    places = sorted(random.Random(seed).sample(range(1, len(data)), COUNT - 1))
    return [data[start:end] for start, end in itertools.pairwise([0, *places, len(data)])]


PLAIN = {
    "events": (SSE, events()),
    "events in CRLF": (SSE, events("\r\n")),
    "huge events": (SSE, events(longest=200_000)),
    "a document": (JSON, document()),
}
NOISE = random.Random(5).randbytes(300_000)  # any coding is noise to who does not know it
PACKED = {
    "gzip": (SSE | {"content-encoding": "gzip"}, gzip.compress(events(), 0)),
    "deflate": (SSE | {"content-encoding": "deflate"}, zlib.compress(document(), 0)),
    "br": (SSE | {"content-encoding": "br"}, NOISE),
    "zstd": (JSON | {"content-encoding": "zstd"}, NOISE),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def press():
    async with printing() as server:
        for seed, (name, (headers, data)) in enumerate((PLAIN | PACKED).items()):
            server.editions[name] = Edition(headers, cut(data, seed))
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def client():
    """A client that leaves what it gets as it is."""
    async with aiohttp.ClientSession(auto_decompress=False, read_bufsize=1 << 16) as session:
        yield session


async def fetch(client, gateway, edition):
    headers = {EDITION: edition}
    body = chat(edition, stream=True)
    async with client.post(gateway.url + CHAT, json=body, headers=headers) as response:
        assert response.status == 200
        return digest(await response.read())


def plan(press, transport, **more):
    return Plan(others=(press.target,), picker_flags=(f"--transport={transport}",), **more)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "STREAMED"])
async def test_byte_for_byte(start, press, client, transport, mode):
    names = list(press.editions)
    async with start(plan(press, transport, response_body_mode=mode)) as gateway:
        found = await asyncio.gather(*(fetch(client, gateway, name) for name in names))
        assert dict(zip(names, found, strict=True)) == {
            name: edition.digest for name, edition in press.editions.items()
        }
        await gateway.metric_becomes(len(PLAIN), COUNTED)
        assert await gateway.metric("llm_d_epp_request_output_tokens_sum") == len(PLAIN) * COUNT
        await until(gateway.idle)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_that_does_not_read_holds_the_server_up(start, press, client, transport):
    piece = b"data: " + b"y" * (LARGE_PIECE - 8) + b"\n\n"
    press.editions["large"] = Edition(SSE, [piece] * (LARGE // LARGE_PIECE))
    async with start(plan(press, transport)) as gateway:
        assert await fetch(client, gateway, "events") == press.editions["events"].digest
        picker, press.written = psutil.Process(gateway.picker.pid), 0
        before = picker.memory_info().rss
        headers, body = {EDITION: "large"}, chat("large", stream=True)
        async with client.post(gateway.url + CHAT, json=body, headers=headers) as response:
            await until(lambda: asyncio.sleep(0, press.stalled(STALLED)))
            assert press.written < MAX_HELD
            assert picker.memory_info().rss - before < MAX_MEMORY
            assert await fetch(client, gateway, "a document") == press.editions["a document"].digest
            assert digest(await response.read()) == press.editions["large"].digest
        assert picker.memory_info().rss - before < MAX_MEMORY
        await until(gateway.idle)
