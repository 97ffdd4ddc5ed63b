import asyncio
import contextlib
import sys

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from epp.adapters.telemetry.debug_pages import DebugPage
from epp.adapters.telemetry.http import OperatorServer, OperatorSettings
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from tests.loopbacks import loopbacks
from tests.tasks import until


@contextlib.asynccontextmanager
async def serving(ready=lambda: True, address="127.0.0.1", **readers):
    telemetry = Telemetry(MetricSources("pool", list, list, int))
    server = OperatorServer(telemetry, ready, address, 0, OperatorSettings(**readers))
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            yield server, session
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("accept", "content_type", "read"),
    [
        ("", "text/plain", text_string_to_metric_families),
        ("text/plain;version=0.0.4", "text/plain", text_string_to_metric_families),
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics", read_openmetrics),
    ],
)
async def test_metrics_come_in_the_format_asked_for(accept, content_type, read):
    async with (
        serving() as (_, session),
        session.get("/metrics", headers={"Accept": accept}) as response,
    ):
        assert response.status == 200
        assert response.headers["Content-Type"].startswith(content_type)
        names = {family.name for family in read(await response.text())}
    assert "llm_d_epp_ready_endpoints" in names


async def test_readiness_is_asked_each_time_and_liveness_is_not_readiness():
    answers = iter([False, True, False])
    async with serving(lambda: next(answers)) as (_, session):
        statuses = []
        for path in ("/readyz", "/readyz", "/readyz", "/healthz", "/nothing"):
            async with session.get(path) as response:
                statuses.append(response.status)
    assert statuses == [503, 200, 503, 200, 404]


@pytest.mark.parametrize("address", ["", "::"])
async def test_all_addresses_are_of_both_families(address):
    async with serving(address=address) as (server, session):
        for host in loopbacks():
            async with session.get(f"http://{host}:{server.port}/healthz") as response:
                assert response.status == 200


async def test_a_port_in_use_is_an_error_and_stop_frees_it():
    async with serving() as (server, _):
        other = OperatorServer(Telemetry(MetricSources("p", list, list, int)), bool, "127.0.0.1", 0)
        other.port = server.port
        with pytest.raises(OSError, match="address already in use"):
            await other.start()
        await other.stop()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", server.port)


async def said(port, *requests, piece=1 << 16):
    """Send requests, byte by byte on demand; return all bytes of the responses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(10):
        data = b"".join(requests)
        for at in range(0, len(data), piece):
            writer.write(data[at : at + piece])
            await writer.drain()
        writer.write_eof()
        answer = await reader.read()
    writer.close()
    return answer


ASKED = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
OK = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n"
    b"Connection: keep-alive\r\n\r\nok\n"
)


@pytest.mark.parametrize("piece", [1, 1 << 16])
async def test_requests_follow_one_another(piece):
    async with serving() as (server, _):
        head = ASKED.replace(b"GET", b"HEAD")
        assert await said(server.port, ASKED, head, ASKED, piece=piece) == OK + OK[:-3] + OK


async def test_a_client_that_does_not_read_is_not_answered_without_end():
    """Responses without a body count, too."""
    async with serving() as (server, _):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        await until(lambda: server._idle)
        (answers,) = server._idle.values()
        writer.write(ASKED.replace(b"GET", b"HEAD") * 50_000)
        await until(lambda: answers.transport.get_write_buffer_size() > 1 << 16)
        for _ in range(5000):
            await asyncio.sleep(0)
        waits = answers.transport.get_write_buffer_size()
        writer.transport.abort()
    assert waits < 1 << 17


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz?a=b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 200),
        (b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello", 405),
        (b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", 404),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"x" * 40_000 + b"\r\n\r\n", 400),
    ],
)
async def test_a_last_request_is_answered_and_the_connection_closed(request_, status):
    async with serving() as (server, session):
        try:
            answer = await said(server.port, request_, ASKED)
        except ConnectionResetError:  # what was sent after the request was never read
            answer = b""
        assert answer.count(b"HTTP/1.1 ") <= 1
        assert answer[9:12] in {b"", str(status).encode()}
        if len(request_) < 1000:
            answer = await said(server.port, request_)
            assert answer[9:12] == str(status).encode()
            assert b"\r\nConnection: close\r\n" in answer
        async with session.get("/readyz") as response:
            assert response.status == 200


async def test_half_a_request_is_not_answered():
    async with serving() as (server, _):
        assert await said(server.port, b"GET /half") == b""


async def test_stop_does_not_wait_for_idle_connections_for_long():
    async with serving() as (server, session), session.get("/healthz") as response:
        assert response.status == 200
        async with asyncio.timeout(10):
            await server.stop()


async def test_stop_waits_for_an_answer_under_way():
    asked, known = asyncio.Event(), asyncio.Event()

    async def answer(_):
        asked.set()
        await known.wait()
        return b"known"

    async with serving(debug={b"/slow": DebugPage(answer)}) as (server, _):
        asking = asyncio.create_task(said(server.port, b"GET /slow HTTP/1.1\r\n\r\n"))
        await asked.wait()
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)  # it has begun
        known.set()
        assert (await asking).endswith(b"\r\n\r\nknown")
        await stopping


async def test_an_accept_that_no_parser_expects_gets_the_plain_page():
    async with serving() as (_, session):
        for accept in ("application/openmetrics-text;version=x", "text/plain;version=;;=,,"):
            async with session.get("/metrics", headers={"Accept": accept}) as response:
                assert response.status == 200
                assert response.headers["Content-Type"].startswith("text/plain")


HANGING_UP = """
import asyncio, socket, uvloop
from tests.adapters.test_telemetry_http import ASKED, OK, said, serving

async def hang_up():
    async with serving() as (server, _):
        for words in (b"GET /metrics HTTP/1.1\\r\\n\\r\\n", b"GET /metr", b"?\\r\\n\\r\\n", b""):
            for _ in range(5):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                link = writer.get_extra_info("socket")
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1]) + bytes(7))
                writer.write(words)
                await writer.drain()
                writer.transport.abort()
        assert await said(server.port, ASKED) == OK

uvloop.run(asyncio.wait_for(hang_up(), 10))
"""


async def test_nothing_is_logged_of_who_hangs_up():
    """On uvloop, whose transports raise where asyncio's own are silent."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HANGING_UP), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, complaints = await process.communicate()
    assert (process.returncode, complaints.decode()) == (0, "")


class TestRoom:
    async def test_a_head_that_does_not_end_is_not_waited_for(self):
        async with serving() as (server, _):
            server.head_seconds = 0.1
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nx: y\r\n")
            async with asyncio.timeout(10):
                assert await reader.read() == b""
            writer.close()

    async def test_who_asks_nothing_makes_room_for_who_asks(self, caplog):
        count = 300
        async with serving() as (server, _), contextlib.AsyncExitStack() as stack:
            idle = []
            for _ in range(count):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                stack.callback(writer.close)
                idle.append(reader)
                if len(idle) > 256:  # the oldest has gone by now
                    async with asyncio.timeout(10):
                        assert await idle[len(idle) - 257].read() == b""
            assert await said(server.port, ASKED) == OK
            assert len(server._serving) <= 256
            assert not idle[-1].at_eof()
        assert caplog.records == []
