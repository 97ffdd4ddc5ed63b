"""The client of pages against servers that break HTTP/2, flood it, or do not speak it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.adapters.scrape.page_client import PageClient
from epp.adapters.scrape.page_connection import NoAnswer, PageRefused
from tests.adapters.h2c_pods import (
    DEADLINE,
    MAX_BYTES,
    PAGE,
    H2cPod,
    client_of,
    frame,
    once,
    polite,
    slowly,
)

# RFC 9113 §6.
DATA, HEADERS, _, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
UNKNOWN = 0xEE
HEAD = b"\x88"  # RFC 7541, appendix A: `:status: 200` is entry 8


def frames(*said):
    """Answer with frames in place of h2's."""

    async def answer(stream):
        stream.connection.raw(b"".join(said))

    return answer


def head(block=HEAD, flags=0x4):
    return frame(HEADERS, block, flags, 1)


def settings(count, first=0x100):
    return frame(SETTINGS, b"".join((first + each).to_bytes(2) + bytes(4) for each in range(count)))


PING_ONCE, EMPTY = frame(PING, b"12345678"), frame(DATA, b"", 0, 1)
# RFC 7541 §6: a field that is stored, of 4,000 bytes; then it is mentioned in a byte.
BOMB = HEAD + b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000 + b"\xbe" * 400
TOO_MANY = "too many frames"
RULE = "breaks a rule of HTTP/2"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda stream: slowly(stream, b"x" * (MAX_BYTES + 1)), f"larger than {MAX_BYTES}"),
        (frames(*[PING_ONCE] * 500), TOO_MANY),
        (frames(*[settings(0)] * 500), TOO_MANY),
        (frames(*[frame(WINDOW_UPDATE, b"\0\0\0\1")] * 500), TOO_MANY),
        (frames(*[frame(UNKNOWN, b"x" * 5000)] * 4), TOO_MANY),
        (frames(head(), *[frame(DATA, b"x", 0, 1)] * 500), TOO_MANY),
        (frames(head(), *[EMPTY] * 500), TOO_MANY),
        (frames(head(flags=0), *[frame(CONTINUATION, b"", 0, 1)] * 300), RULE),
        (frames(head(flags=0), *[frame(CONTINUATION, b"x" * 9000, 0, 1)] * 2), TOO_MANY),
        (frames(settings(80)), "more than 64 settings"),
        (frames(settings(40), settings(40, 0x200)), "more than 64 settings"),
        (frames(head(BOMB)), RULE),
        (frames(head(b"\xff\xff\xff\xff\xff")), RULE),
        (frames(head(b"")), RULE),
        (frames(head(b"\x08\x03abc")), "HTTP status 0"),
        (frames(head(b"\x08\x7f\xa1\x22" + b"2" * 4512)), "HTTP status 0"),
        (frames(frame(DATA, b"early", 0, 1)), RULE),
        (frames(frame(DATA, b"nobody's", 0, 2)), RULE),
        (frames(frame(PUSH_PROMISE, b"\0\0\0\2\x82\x86\x84\x41\x01a", 0x4, 1)), RULE),
        (frames(frame(UNKNOWN, b"x" * 16_385)), "a frame is larger than 16384"),
        (frames(frame(GOAWAY, b"x" * 7)), "GOAWAY has 16 bytes"),
        (frames(frame(SETTINGS, b"", 0, 1)), RULE),
        (frames(head(HEAD + b"\x0f\x0d\x019"), frame(DATA, b"four", 0x1, 1)), RULE),
    ],
)
@pytest.mark.parametrize("piece", [None, 1000])
async def test_what_is_no_page_is_refused_and_the_next_has_another_connection(
    answer, reason, piece
):
    pod = H2cPod(once(answer), piece)
    async with client_of(pod) as client:
        with pytest.raises(PageRefused, match=reason):
            await client.get()
        assert await client.get() == PAGE
    assert len(pod.connections) == 2


async def test_a_flood_between_pages_ends_the_connection():
    async def then_floods(stream):
        await polite(stream)
        stream.connection.raw(PING_ONCE * 1000)

    pod = H2cPod(once(then_floods))
    async with client_of(pod) as client:
        assert await client.get() == PAGE
        assert await client.get() == PAGE
    assert len(pod.connections) == 2


async def test_a_server_that_takes_no_streams_is_refused():
    async def then_closes_the_door(stream):
        stream.h2.update_settings({3: 0})
        await polite(stream)

    pod = H2cPod(once(then_closes_the_door))
    async with client_of(pod) as client:
        assert await client.get() == PAGE
        with pytest.raises(PageRefused, match="takes no request"):
            await client.get()
        assert await client.get() == PAGE


async def test_little_is_kept_of_pages_that_were_read():
    async with client_of(H2cPod(polite)) as client:
        for _ in range(50):
            await client.get()
        known = client._connection._h2
        assert len(known._closed_streams) <= 8
        assert len(known.streams) <= 2


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"HTTP/1.0 505 HTTP Version Not Supported\r\n\r\n<html>",
        b"<!DOCTYPE HTML>\r\n",
        b"\x15\x03\x01\x00\x02\x02\x0a\x00\x00",
    ],
)
async def test_a_server_of_another_protocol_is_named_as_such(said):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = PageClient(f"h2c://127.0.0.1:{server.sockets[0].getsockname()[1]}/", {}, MAX_BYTES)
    async with server, asyncio.timeout(DEADLINE):
        with pytest.raises(PageRefused, match="does not speak HTTP/2, though") as raised:
            await client.get()
    assert repr(said.partition(b"\r\n")[0].decode("ascii", "replace"))[1:-1] in str(raised.value)
    client.close()


async def test_a_connection_that_is_closed_at_once_is_no_answer():
    async def serve(_reader, writer):
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = PageClient(f"h2c://127.0.0.1:{server.sockets[0].getsockname()[1]}/", {}, MAX_BYTES)
    async with server, asyncio.timeout(DEADLINE):
        with pytest.raises((NoAnswer, ConnectionResetError)):
            await client.get()
    client.close()


# Anything at all.

BLOCKS = st.sampled_from([HEAD, b"", b"\x88\x82", b"\x8d", b"\x20\x88", b"\x00\x01x\x01y"])
FRAMES = st.builds(
    frame,
    st.integers(0, CONTINUATION) | st.integers(0, 255),
    BLOCKS | st.binary(max_size=40),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3]) | st.integers(0, 2**32 - 1),
)


class Transport(asyncio.Transport):
    """Takes what is written, and is closed when it is aborted."""

    def __init__(self):
        super().__init__()
        self.closed = False

    def write(self, data):
        assert data

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return self.closed

    def abort(self):
        self.closed = True


@given(st.lists(FRAMES, max_size=8), st.integers(1, 50))
def test_any_frames_end_in_a_page_or_in_an_error_of_pages(said, piece):
    async def read():
        client = PageClient("h2c://127.0.0.1:1/metrics", {}, MAX_BYTES)
        connection, transport = client._made(), Transport()
        connection.connection_made(transport)
        getting = asyncio.ensure_future(connection.get())
        await asyncio.sleep(0)
        data = settings(0) + b"".join(said)
        while data and not transport.is_closing():
            buffer = connection.get_buffer(-1)
            size = min(piece, len(data), len(buffer))
            buffer[:size], data = data[:size], data[size:]
            connection.buffer_updated(size)
        connection.connection_lost(None)
        try:
            return await getting
        except (PageRefused, TimeoutError) as error:
            return error

    assert asyncio.run(read()) is not None
