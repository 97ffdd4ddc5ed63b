"""The client of pages against servers that speak HTTP/2 in plain text, politely or not."""

import asyncio

import pytest
from h2.errors import ErrorCodes

from epp.adapters.scrape.page_connection import NoAnswer, PageLost, PageRefused
from tests.adapters.h2c_pods import (
    MAX_BYTES,
    PAGE,
    H2cPod,
    client_of,
    frame,
    goaway,
    once,
    polite,
    slowly,
)
from tests.adapters.vllm_page import vllm_page

RST_STREAM = 0x3


@pytest.mark.parametrize("piece", [None, 1])
async def test_pages_come_over_one_connection(piece):
    pod = H2cPod(polite, piece)
    async with client_of(pod) as client:
        assert [await client.get() for _ in range(3)] == [PAGE] * 3
    assert len(pod.connections) == 1
    expected = {":method": "GET", ":scheme": "http", ":path": "/metrics", "accept": "text/plain"}
    assert pod.requests == [{**expected, ":authority": f"127.0.0.1:{pod.port}"}] * 3


async def test_a_page_of_a_model_server_is_read_in_slow_pieces():
    page = vllm_page(engines=3)
    pod = H2cPod(lambda stream: slowly(stream, page), piece=1000)
    async with client_of(pod) as client:
        assert [await client.get(), await client.get()] == [page] * 2
    assert len(pod.connections) == 1


async def test_windows_are_given_back():
    large = b"x" * MAX_BYTES  # three times the window of a stream, and of the connection
    pod = H2cPod(lambda stream: slowly(stream, large))
    async with client_of(pod) as client:
        for _ in range(3):
            assert await client.get() == large
    assert len(pod.connections) == 1


async def test_a_page_comes_in_parts_of_any_size():
    parts = [b"a" * 2000, b"b" * 10, b"c" * 10, b"d" * 3000, b"e"]

    async def answer(stream):
        stream.head()
        for part in parts:
            await stream.body(part, end=False)
        await stream.body(b"")

    async with client_of(H2cPod(answer)) as client:
        assert await client.get() == b"".join(parts)


async def test_padding_counts_for_windows_and_not_as_page():
    async def padded(stream):
        stream.head()
        for _ in range(400):
            while stream.h2.local_flow_control_window(stream.id) < 512:
                await stream.connection.heard()
            stream.h2.send_data(stream.id, b"x" * 256, pad_length=255)
            await stream.connection.drain()
        stream.h2.end_stream(stream.id)
        stream.connection.flush()

    async with client_of(H2cPod(padded)) as client:
        assert await client.get() == b"x" * 256 * 400


async def test_an_empty_page_and_trailers_are_a_page():
    async def empty(stream):
        stream.head(end=True)

    async def trailers(stream):
        stream.head()
        await stream.body(PAGE, end=False)
        stream.h2.send_headers(stream.id, [("grpc-status", "0")], end_stream=True)
        stream.connection.flush()

    pod = H2cPod(empty)
    async with client_of(pod) as client:
        assert await client.get() == b""
        pod.answer = trailers
        assert await client.get() == PAGE
    assert len(pod.connections) == 1


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (404, PageRefused, "HTTP status 404"),
        (307, PageRefused, "HTTP status 307"),
        (204, PageRefused, "HTTP status 204"),
        (502, NoAnswer, "HTTP status 502"),
        (504, TimeoutError, "HTTP status 504"),
        (103, PageRefused, "HTTP status 103"),
    ],
)
async def test_statuses_are_errors_as_over_http_1(status, error, reason):
    async def answer(stream):
        stream.head(status, end=status >= 200)

    pod = H2cPod(once(answer))
    async with client_of(pod) as client:
        with pytest.raises(error, match=reason) as raised:
            await client.get()
        assert type(raised.value) is error
        assert await client.get() == PAGE


async def cut_by(stream, act):
    stream.head()
    await stream.body(b"pa", end=False)
    act(stream)


def reset(stream):
    stream.h2.reset_stream(stream.id, ErrorCodes.INTERNAL_ERROR)
    stream.connection.flush()


def hang_up(stream):
    stream.connection.writer.close()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (reset, "reset the stream: INTERNAL_ERROR"),
        (hang_up, "closed by the server"),
        (lambda stream: goaway(stream, 0, ErrorCodes.ENHANCE_YOUR_CALM), "ENHANCE_YOUR_CALM"),
        (lambda stream: goaway(stream, 0, 999), "going away: 999"),
    ],
)
async def test_a_page_that_is_cut_is_lost_and_the_next_has_another_connection(act, reason):
    pod = H2cPod(once(lambda stream: cut_by(stream, act)))
    async with client_of(pod) as client:
        with pytest.raises(PageLost, match=reason) as raised:
            await client.get()
        assert type(raised.value) is PageLost
        assert await client.get() == PAGE
    assert len(pod.connections) == 2


async def test_a_page_that_was_begun_before_goaway_is_completed():
    async def leaving(stream):
        stream.head()
        await stream.body(b"pa", end=False)
        goaway(stream, 2**31 - 1)  # RFC 9113 §6.8: first of two, of a server that shuts down
        await stream.body(b"g", end=False)
        goaway(stream)
        await stream.body(b"e")

    pod = H2cPod(once(leaving))
    async with client_of(pod) as client:
        assert [await client.get(), await client.get()] == [PAGE] * 2
    assert len(pod.connections) == 2


async def test_goaway_after_a_page_ends_the_kept_connection():
    async def last(stream):
        await polite(stream)
        goaway(stream)

    pod = H2cPod(once(last))
    async with client_of(pod) as client:
        assert [await client.get(), await client.get()] == [PAGE] * 2
    assert len(pod.connections) == 2


@pytest.mark.parametrize("act", [lambda stream: goaway(stream, stream.id - 2), hang_up])
async def test_a_request_that_a_kept_connection_did_not_take_is_sent_again(act):
    async def answer(stream):
        (act if len(stream.connection.pod.requests) == 2 else lambda _: None)(stream)
        if len(stream.connection.pod.requests) != 2:
            await polite(stream)

    pod = H2cPod(answer)
    async with client_of(pod) as client:
        assert [await client.get() for _ in range(3)] == [PAGE] * 3
    assert len(pod.connections) == 2


async def test_a_server_may_reset_a_stream_that_it_has_ended():
    async def late_reset(stream):
        await polite(stream)
        stream.connection.raw(frame(RST_STREAM, bytes(4), 0, stream.id))

    pod = H2cPod(late_reset)
    async with client_of(pod) as client:
        assert [await client.get() for _ in range(3)] == [PAGE] * 3


async def test_pings_and_settings_between_pages_are_answered():
    async def then_pings(stream):
        await polite(stream)
        stream.h2.ping(b"12345678")
        stream.h2.update_settings({5: 1 << 15})
        stream.connection.flush()

    pod = H2cPod(then_pings)
    async with client_of(pod) as client:
        for _ in range(5):
            assert await client.get() == PAGE
    assert len(pod.connections) == 1


async def test_a_cancelled_get_aborts_its_connection():
    begun = asyncio.Event()

    async def half(stream):
        stream.head()
        begun.set()

    pod = H2cPod(once(half))
    async with client_of(pod) as client:
        getting = asyncio.create_task(client.get())
        await begun.wait()
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        assert await client.get() == PAGE
    assert len(pod.connections) == 2
