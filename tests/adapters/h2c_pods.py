"""Model servers that speak HTTP/2 in plain text alone, on real sockets, and clients of them."""

import asyncio
import contextlib

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived
from h2.exceptions import H2Error

from epp.adapters.scrape.page_client import PageClient
from epp.model.endpoint import H2C, Endpoint
from tests.adapters.vllm_page import vllm_page

DEADLINE = 10
MAX_BYTES = 200_000
PAGE = b"page"


class Stream:
    """One request at a server, and the means to answer it."""

    def __init__(self, connection, event):
        self.connection, self.id = connection, event.stream_id
        self.headers = {name.decode(): value.decode() for name, value in event.headers}

    @property
    def h2(self):
        return self.connection.h2

    def head(self, status=200, headers=(), *, end=False):
        fields = [(":status", str(status)), ("content-type", "text/plain"), *headers]
        self.h2.send_headers(self.id, fields, end_stream=end)
        self.connection.flush()

    async def body(self, page, piece=1 << 14, *, end=True):
        """Send a page as its windows allow, in DATA frames of at most `piece` bytes."""
        while page:
            window = self.h2.local_flow_control_window(self.id)
            size = min(piece, window, len(page))
            if not size:
                await self.connection.heard()
                continue
            self.h2.send_data(self.id, page[:size])
            page = page[size:]
            await self.connection.drain()
        if end:
            self.h2.end_stream(self.id)
            self.connection.flush()


class Connection:
    """A connection to a server."""

    def __init__(self, pod, reader, writer):
        self.pod, self.reader, self.writer = pod, reader, writer
        self.h2 = H2Connection(H2Configuration(client_side=False))
        self._heard = asyncio.Event()
        self.received = 0

    def flush(self):
        self.raw(self.h2.data_to_send())

    def raw(self, data):
        """Send bytes that may be anything, in pieces of the pod's size."""
        size = self.pod.piece or len(data) or 1
        for at in range(0, len(data), size):
            self.writer.write(data[at : at + size])

    async def drain(self):
        self.flush()
        await self.writer.drain()

    async def heard(self):
        self._heard.clear()
        await self._heard.wait()

    async def serve(self):
        self.h2.initiate_connection()
        self.flush()
        async with asyncio.TaskGroup() as tasks:
            while data := await self.reader.read(1 << 16):
                self.received += len(data)
                for event in self.h2.receive_data(data):
                    if isinstance(event, RequestReceived):
                        tasks.create_task(self.pod.serve(Stream(self, event)))
                self.flush()
                self._heard.set()
            raise ConnectionResetError


class H2cPod:
    """Answers each request by `answer`, by default with the page of its path; HTTP/1.1 with 400."""

    def __init__(self, answer=None, piece=None):
        self.pages = {"/metrics": vllm_page()}
        self.answer = answer
        self.piece = piece
        self.requests = []
        self.refused = 0
        self.connections = []
        self.port = 0

    async def serve(self, stream):
        self.requests.append(stream.headers)
        if self.answer is not None:
            await self.answer(stream)
        elif (page := self.pages.get(stream.headers[":path"])) is None:
            stream.head(404, end=True)
        else:
            stream.head()
            await stream.body(page)

    async def connected(self, reader, writer):
        connection = Connection(self, reader, writer)
        self.connections.append(connection)
        try:
            await connection.serve()
        except* (H2Error, OSError):
            if not connection.h2.highest_inbound_stream_id:
                self.refused += 1
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        finally:
            writer.close()

    @contextlib.asynccontextmanager
    async def serving(self):
        server = await asyncio.start_server(self.connected, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for each in self.connections:
                each.writer.transport.abort()
            await server.wait_closed()

    def url(self, path="/metrics"):
        return f"h2c://127.0.0.1:{self.port}{path}"

    def endpoint(self, name="a", app_protocol=H2C, **more):
        return Endpoint("default", name, "127.0.0.1", self.port, app_protocol=app_protocol, **more)


def goaway(stream, last=None, code=ErrorCodes.NO_ERROR):
    """Say that the connection takes no more requests, the last being this; go on with h2."""
    last = stream.id if last is None else last
    stream.connection.flush()
    stream.connection.raw(frame(0x7, last.to_bytes(4) + int(code).to_bytes(4)))


def frame(kind, body=b"", flags=0, stream=0):
    """A frame of any kind (RFC 9113 §4.1)."""
    return len(body).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + body


@contextlib.asynccontextmanager
async def client_of(pod, max_bytes=MAX_BYTES):
    async with pod.serving(), asyncio.timeout(DEADLINE):
        client = PageClient(pod.url(), {"Accept": "text/plain"}, max_bytes)
        try:
            yield client
        finally:
            client.close()


async def polite(stream):
    stream.head()
    await stream.body(PAGE)


def once(answer):
    """Answer the first request so, and the others politely."""

    async def answering(stream):
        await (answer if len(stream.connection.pod.requests) == 1 else polite)(stream)

    return answering


async def slowly(stream, page):
    stream.head()
    await asyncio.sleep(0)
    await stream.body(page, piece=200)
