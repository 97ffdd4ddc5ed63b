"""TLS of one command, attacked below any request, while others are served."""

import asyncio
import os
import ssl
import time
from contextlib import suppress

import aiohttp

from bench.adversary.wires import closed, opened
from e2e.corridor import CHAT, chat
from e2e.from_nothing import up
from e2e.test_up import simulated
from epp.adapters.tls import certificate
from tests.native.wire import client_hello

WORST = 2.0
"""Seconds that others may wait: a shared machine's, not Envoy's."""
_AT_ONCE, _COUNT = 100, 2_000
HELLO = client_hello()
NOISE = os.urandom(4_096)
SAID = {
    "nothing": (b"", False),
    "half a hello": (HELLO[:100], False),
    "a hello": (HELLO, True),
    "noise": (NOISE, True),
    "noise after a hello": (HELLO + NOISE, True),
    "hellos": (HELLO * 20, True),
    "plain HTTP": (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", True),
    "alerts": (b"\x15\x03\x03\x00\x02\x01\x00" * 500, True),
    "a record of the greatest length": (b"\x16\x03\x01\xff\xff" + NOISE, True),
}


class Others:
    """Clients who ask on connections of their own, one after another."""

    def __init__(self, url):
        self.url = url
        self.waits, self.bad = [], []

    async def run(self):
        unverified = aiohttp.TCPConnector(ssl=False, force_close=True)
        async with aiohttp.ClientSession(connector=unverified) as client:
            while True:
                began = time.monotonic()
                try:
                    async with client.post(self.url + CHAT, json=chat("hello")) as response:
                        await response.read()
                        if response.status != 200:
                            self.bad.append(response.status)
                except aiohttp.ClientError as error:
                    self.bad.append(repr(error))
                self.waits.append(time.monotonic() - began)
                await asyncio.sleep(0.02)


async def several(port, said, count, *, wait):
    """Open connections one after another; what is said is not what a client would say next."""
    for _ in range(count):
        pair = await opened(port)
        with suppress(ConnectionError, TimeoutError):
            pair[1].write(said)
            if wait:
                async with asyncio.timeout(1):
                    await pair[0].read(1)
        await closed(pair)


async def resumed(port, count):
    """Open connections that end as soon as the handshake is over."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(count):
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.transport.abort()


def written(folder):
    """Write a pair; return its files."""
    names = folder / "key.pem", folder / "chain.pem"
    for path, pem in zip(names, certificate(None), strict=True):
        path.with_suffix(".draft").write_bytes(pem)
        path.with_suffix(".draft").replace(path)
    return names


async def test_others_are_served_while_handshakes_are_attacked(tmp_path):
    key, chain = written(tmp_path)
    flags = (f"--tls-cert={chain}", f"--tls-key={key}")
    async with (
        simulated(tmp_path, "a", "b") as servers,
        up(tmp_path, *servers.urls.values(), *flags) as gateway,
    ):
        port = int(gateway.url.rsplit(":", 1)[1])
        others = Others(f"https://127.0.0.1:{port}")
        asking = asyncio.create_task(others.run())
        idle = [await opened(port) for _ in range(1_000)]
        for said, wait in SAID.values():
            share = _COUNT // _AT_ONCE // len(SAID)
            jobs = (several(port, said, share, wait=wait) for _ in range(_AT_ONCE))
            await asyncio.gather(*jobs)
            written(tmp_path)
        await asyncio.gather(*(resumed(port, 10) for _ in range(20)))
        await asyncio.sleep(11)  # the certificate is looked at again
        await closed(*idle)
        await asyncio.sleep(1)
        asking.cancel()
        assert others.bad == []
        assert len(others.waits) > 50
        assert max(others.waits) < WORST
        assert "the certificate was renewed" in gateway.said
