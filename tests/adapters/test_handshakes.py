"""TLS handshakes of a port, and the port that accepts them."""

import asyncio
import socket
import ssl
from collections import Counter

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from epp.adapters.tls import certificate
from epp.system.handshakes import Handshakes
from epp.system.port import Port
from tests.native import wire
from tests.processes import no_descriptor_left
from tests.tasks import until

HELLO = wire.client_hello()
LONG = b"\x16\x03\x01" + (8_000).to_bytes(2, "big") + bytes(4_000)
"""The beginning of a record."""
PATIENT, HASTY = 10.0, 0.2


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class Served:
    """A port with TLS whose connections say what they hear."""

    def __init__(self, context, patience):
        self.begun = 0
        self.clients: list[asyncio.StreamWriter] = []
        self.plaintext: list[socket.socket] = []
        self.handshakes = Handshakes(context, self.accept, patience, self.plaintext.append)
        self.port = Port("127.0.0.1", 0, self.handshakes.take)
        self.port.open()

    def accept(self):
        self.begun += 1
        return Echo()

    async def connect(self, said=b"", **tls):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port.port, **tls)
        self.clients.append(writer)
        writer.write(said)
        return reader, writer

    def close(self):
        self.port.close()
        self.handshakes.close()

    async def leave(self):
        """Close the clients' side."""
        for each in self.clients:
            each.close()
        await asyncio.gather(*(each.wait_closed() for each in self.clients), return_exceptions=True)


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    for name, content in zip(("key", "chain"), certificate(None), strict=True):
        (folder / name).write_bytes(content)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "chain", folder / "key")
    return serving


@pytest_asyncio.fixture
async def served(request, context):
    made = Served(context, getattr(request, "param", PATIENT))
    async with asyncio.timeout(20):
        yield made
        made.close()
        await made.leave()


async def end_of(reader):
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionError:
        pass


def trusting():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def test_a_client_is_served(served):
    reader, _ = await served.connect(b"hello\n", ssl=trusting(), server_hostname="localhost")
    assert await reader.readline() == b"hello\n"
    assert len(served.handshakes) == 0


@pytest.mark.parametrize("at", [1, 4, 5, 6, 100, -1])
async def test_a_handshake_begins_when_the_hello_is_whole(served, at):
    reader, writer = await served.connect(HELLO[:at])
    await until(lambda: len(served.handshakes) == 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert served.begun == 0
    writer.write(HELLO[at:])
    assert (await reader.read(1)) == b"\x16"  # a record of the server's
    await served.leave()
    await until(lambda: len(served.handshakes) == 0)


@pytest.mark.parametrize(
    ("said", "told"),
    [(wire.PREFACE, 1), (b"GET / HTTP/1.1\r\n\r\n", 0), (b"\0" * 9, 0), (HELLO[:5] + b"PRI *", 0)],
)
async def test_who_speaks_plaintext_http2_is_told_of(served, said, told):
    reader, writer = await served.connect(said)
    writer.write_eof()
    await end_of(reader)
    assert len(served.plaintext) == told
    assert served.begun == 1 or said.startswith(HELLO[:5])


@pytest.mark.parametrize("served", [HASTY], indirect=True)
@pytest.mark.parametrize("length", [0, 3, 100, None])
async def test_who_stops_is_left(served, length):
    reader, _ = await served.connect(HELLO[:length])
    await end_of(reader)
    await until(lambda: len(served.handshakes) == 0)


@pytest.mark.parametrize("length", [0, 1, 100])
async def test_who_goes_is_left_at_once(served, length):
    reader, writer = await served.connect(HELLO[:length])
    writer.write_eof()
    await end_of(reader)
    await until(lambda: len(served.handshakes) == 0)
    assert served.begun == 0


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(5), b"\x16\x03\x01\xff\xff", b"\x16\x03\x01\0\0" * 40],
    ids=["http", "zeros", "too long", "empty records"],
)
async def test_what_is_no_hello_is_refused(served, said):
    reader, writer = await served.connect(said)
    if said.startswith(b"\x16\x03\x01\xff"):
        writer.write(bytes(1 << 15))
    await end_of(reader)
    await until(lambda: len(served.handshakes) == 0)


async def test_where_the_kernel_holds_less_than_a_record_it_begins_with_what_came(served):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_304)
        with socket.create_connection(listening.getsockname()) as client:
            served.handshakes.take(listening.accept()[0])
            client.sendall(LONG)
            await until(lambda: served.begun)


async def test_few_handshakes_begin_between_two_turns_of_the_loop(served):
    pairs = [await served.connect() for _ in range(100)]
    await until(lambda: len(served.handshakes) == 100)
    for _, writer in pairs:
        writer.write(HELLO)
    begun: Counter[int] = Counter()
    for turn in range(1_000_000):
        before = served.begun
        if before == 100:
            break
        await asyncio.sleep(0)
        begun[turn] = served.begun - before
    assert max(begun.values()) <= 4
    await asyncio.gather(*(reader.read(1) for reader, _ in pairs))


async def test_all_are_left_when_it_closes(served):
    readers = [(await served.connect(said))[0] for said in (b"", HELLO[:10], HELLO)]
    await until(lambda: len(served.handshakes) == 3 and served.begun == 1)
    served.close()
    await asyncio.gather(*map(end_of, readers))
    await until(lambda: len(served.handshakes) == 0)


async def test_a_port_without_descriptors_accepts_later(served):
    with socket.create_connection(("127.0.0.1", served.port.port)) as client:
        with capture_logs() as logs, no_descriptor_left():
            await until(lambda: logs)
            for _ in range(20):
                await asyncio.sleep(0)
        assert [each["event"] for each in logs] == ["port.no_room"]
        client.sendall(HELLO)
        await until(lambda: served.begun)


async def test_a_port_that_is_taken_is_an_error(served):
    with pytest.raises(OSError, match="in use"):
        Port("127.0.0.1", served.port.port, served.handshakes.take)
