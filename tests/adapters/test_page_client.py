"""The client of metrics pages against servers that say anything, byte by byte."""

import asyncio
import contextlib
import socket
import ssl

import pytest

from epp.adapters.scrape.page_client import PageClient
from epp.adapters.scrape.page_connection import NoAnswer, PageRefused
from epp.adapters.tls import certificate

DEADLINE = 10
MAX_BYTES = 1000
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\np\r\n3\r\nage\r\n0\r\n\r\n"
TO_THE_END = b"HTTP/1.0 200 OK\r\n\r\npage"
CLOSING = LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


class Server:
    """Says the next of `answers` to each request; None closes the connection in its place."""

    def __init__(self, *answers, piece=None):
        self.answers = list(answers)
        self.requests = []
        self.connections = 0
        self.piece = piece

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while self.answers:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                for at in range(0, len(answer), self.piece or len(answer)):
                    writer.write(answer[at : at + (self.piece or len(answer))])
                    await writer.drain()
                    await asyncio.sleep(0)
                if answer is TO_THE_END:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serving(server, tls=None):
    made = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    url = f"{scheme}://127.0.0.1:{made.sockets[0].getsockname()[1]}/metrics"
    client = PageClient(url, {"Accept": "text/plain"}, MAX_BYTES)
    try:
        async with asyncio.timeout(DEADLINE):
            yield client
    finally:
        client.close()
        made.close()
        await made.wait_closed()


@pytest.mark.parametrize("piece", [None, 1])
@pytest.mark.parametrize(
    ("answers", "connections"),
    [
        ((LENGTH, LENGTH, LENGTH), 1),
        ((CHUNKED, LENGTH, CHUNKED), 1),
        ((TO_THE_END, TO_THE_END, LENGTH), 3),
        ((CLOSING, CLOSING, LENGTH), 3),
    ],
)
async def test_pages_end_in_every_way_that_there_is(answers, connections, piece):
    server = Server(*answers, piece=piece)
    async with serving(server) as client:
        assert [await client.get() for _ in answers] == [b"page"] * 3
    assert server.connections == connections
    first, *others = server.requests
    host = client.url.split("/")[2].encode()
    assert first == b"GET /metrics HTTP/1.1\r\nHost: " + host + b"\r\nAccept: text/plain\r\n\r\n"
    assert others == [first] * 2


async def test_a_kept_connection_that_was_closed_is_made_again():
    server = Server(LENGTH, None, LENGTH)
    async with serving(server) as client:
        assert [await client.get(), await client.get()] == [b"page"] * 2
    assert server.connections == 2


async def test_a_fresh_connection_that_is_closed_is_a_failure():
    server = Server(None, None)
    async with serving(server) as client:
        with pytest.raises(PageRefused, match="closed by the server"):
            await client.get()
    assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001, "larger than 1000"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 70_000, "head is larger"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n", "not an HTTP response"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", "101|answer"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP status 204"),
        (b"HTTP/2 200 OK\r\n\r\n", "not an HTTP response"),
        (CHUNKED[:47] + b"1;" + b"x" * 70_000, "much larger"),
        (CHUNKED[:-2] + b"x: y\r\n" * 12_000, "much larger"),
        (CHUNKED[:47] + b"1\r\nx\r\n" * 12_000, "larger than 1000"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3000, "HTTP status 100"),
    ],
)
@pytest.mark.parametrize("piece", [None, 1000])
async def test_after_a_refused_response_the_next_page_has_another_connection(answer, reason, piece):
    server = Server(answer, LENGTH, piece=piece)
    async with serving(server) as client:
        with pytest.raises(PageRefused, match=reason):
            await client.get()
        assert await client.get() == b"page"
    assert server.connections == 2


async def test_unrequested_data_is_not_the_next_response():
    server = Server(LENGTH + LENGTH.replace(b"page", b"junk"), LENGTH)
    async with serving(server) as client:
        assert [await client.get(), await client.get()] == [b"page"] * 2
    assert server.connections == 2


async def test_a_cancelled_get_aborts_its_connection():
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", LENGTH)
    async with serving(server) as client:
        getting = asyncio.create_task(client.get())
        while not (client._connection and client._connection._in_body):
            await asyncio.sleep(0)
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        assert await client.get() == b"page"
    assert server.connections == 2


async def silent(reader, writer):
    """Take a connection, and answer nothing."""
    await reader.read()
    await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("scheme", "waits"), [("http", "_connection"), ("https", "_connecting")], ids=["page", "tls"]
)
async def test_a_get_that_is_given_up_is_late(scheme, waits):
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
    async with server, asyncio.timeout(DEADLINE):
        client = PageClient(url, {}, MAX_BYTES)
        client.give_up()
        getting = asyncio.create_task(client.get())
        while getattr(client, waits) is None:
            await asyncio.sleep(0)
        client.give_up()
        with pytest.raises(TimeoutError):
            await getting
        assert client._connecting is None
        client.close()


async def test_a_host_that_takes_no_connection_is_not_waited_for():
    with socket.socket() as full, socket.socket() as queued, socket.socket() as dropped:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        # listen(2): what comes when the queue is full is dropped, as by a host that is gone.
        for each in (queued, dropped):
            each.setblocking(False)
            each.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}/metrics"
        client = PageClient(url, {}, MAX_BYTES, connect_seconds=0.05)
        with pytest.raises(NoAnswer, match="no connection in time"):
            await client.get()


async def test_a_get_may_be_given_up_in_the_turn_in_which_connecting_takes_too_long():
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    faults: list[object] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    async with server, asyncio.timeout(DEADLINE):
        client = PageClient(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/", {}, 9)
        client._connect_seconds = 0.02
        getting = asyncio.create_task(client.get())
        while (limit := client._connecting) is None:
            await asyncio.sleep(0)
        loop.call_at(limit.when() or 0.0, client.give_up)
        with pytest.raises(NoAnswer, match="no connection in time"):
            await getting
    assert faults == []


async def test_what_is_not_acknowledged_ends_a_connection_that_is_kept():
    async with serving(Server(LENGTH, LENGTH)) as client:
        assert await client.get() == b"page"
        kept = client._connection._transport.get_extra_info("socket")
        bound = kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert 1000 <= bound <= 5000


async def test_over_tls_certificates_are_not_verified(tmp_path):
    key, chain = certificate(None)
    (tmp_path / "pair").write_bytes(key + chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair")
    async with serving(Server(LENGTH, LENGTH), context) as client:
        assert [await client.get(), await client.get()] == [b"page"] * 2


@pytest.mark.parametrize("host", ["a" * 300, "a..b", "no-such-host.invalid", "[::1]:1"])
async def test_hosts_that_cannot_be_reached(host):
    client = PageClient(f"http://{host}/metrics", {}, MAX_BYTES)
    with pytest.raises((PageRefused, OSError)):
        await client.get()
