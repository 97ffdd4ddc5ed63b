"""What clients and model servers may speak beyond plain JSON over HTTP/1.1."""

import asyncio
import contextlib
import gzip
import json
import zlib
from collections.abc import Callable
from functools import partial

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import WSMsgType, web
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded
from msgspec.structs import replace

from e2e.corridor import CHAT, DEADLINE, REASON, WATCHED, Plan, chat, corridor
from e2e.serving import serving

OUTPUT = "llm_d_epp_request_output_tokens_sum"
IN_FLIGHT = "llm_d_epp_inflight_requests"
OUTCOMES = "warmpick_exchange_outcomes_total"
BODY = json.dumps(chat("hello")).encode()
ANSWER = b'{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}'
PLANS = {
    "full duplex": Plan(picker_flags=WATCHED),
    "streamed responses": Plan(response_body_mode="STREAMED", picker_flags=WATCHED),
    "hanging up": Plan(response_body_mode="STREAMED", picker_flags=("--observe-responses=first",)),
}
BUFFERED = Plan(request_body_mode="BUFFERED", response_body_mode="BUFFERED")
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": partial(gzip.compress, mtime=0),
    "deflate": zlib.compress,
}


async def odd(http):
    """Answer as the request's headers say; websockets with what they send, in capitals."""
    if http.path == "/metrics":
        return web.Response(text="# nothing to tell\n")
    if http.headers.get("upgrade") == "websocket":
        socket = web.WebSocketResponse()
        await socket.prepare(http)
        async for message in socket:
            await socket.send_str(message.data.upper())
        return socket
    sent = await http.read()
    if status := int(http.headers.get("x-status", 0)):
        return web.Response(status=status, headers={"etag": "x"})
    if http.path == "/v1/files":
        return web.Response(body=sent)
    coding = http.headers.get("x-coding", "identity")
    headers = {"content-type": "application/json", "content-encoding": coding}
    packed = PACKED[coding](ANSWER)
    if "x-whole" in http.headers:
        return web.Response(body=packed, headers=headers)
    response = web.StreamResponse(headers=headers)
    await response.prepare(http)
    for at in range(0, len(packed), 10):
        await response.write(packed[at : at + 10])
    return response


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PLANS)
async def gateway(request, tmp_path_factory):
    async with serving(odd) as target:
        plan = replace(PLANS[request.param], others=(target,))
        async with corridor(plan, tmp_path_factory.mktemp("protocols")) as made:
            yield made


async def speak(gateway, head, *later):
    """Send bytes, more of them once something was answered, and read to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head)
    answer = b""
    async with asyncio.timeout(DEADLINE):
        for each in later:
            answer += await reader.readuntil(b"\r\n\r\n")
            writer.write(each)
        answer += await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("host", ["host: x\r\n", ""])
async def test_a_client_of_http_1_0_is_served(gateway, host):
    head = f"POST {CHAT} HTTP/1.0\r\n{host}content-length: {len(BODY)}\r\n\r\n"
    answer = await speak(gateway, head.encode() + BODY)
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n" + ANSWER)


async def test_a_client_that_asks_before_it_sends_is_served(gateway):
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-whole: 1\r\n"
    more = f"expect: 100-continue\r\ncontent-length: {len(BODY)}\r\n\r\n"
    answer = await speak(gateway, (head + more).encode(), BODY)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert ANSWER in answer


@pytest.mark.parametrize("path", ["/v1/realtime?model=m", "/v1/responses"])
async def test_a_websocket_is_open_both_ways(gateway, path):
    before = await gateway.metric(IN_FLIGHT)
    broken = await gateway.metric(OUTCOMES, outcome="aborted")
    async with gateway.client.ws_connect(gateway.url + path) as socket:
        for number in range(50):
            await socket.send_str(f"say {number}")
            assert await socket.receive_str() == f"SAY {number}"
        await gateway.metric_becomes(before + 1, IN_FLIGHT)
        await socket.close()
        assert (await socket.receive()).type is WSMsgType.CLOSED
    await gateway.metric_becomes(before, IN_FLIGHT)
    assert await gateway.metric(OUTCOMES, outcome="aborted") == broken


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_is_one(gateway, status):
    answer = await gateway.post(CHAT, chat("hello"), **{"x-status": str(status)})
    assert (answer.status, answer.body, answer.headers["etag"]) == (status, b"", "x")
    assert await gateway.idle()


async def test_head_is_answered_as_get_is(gateway):
    for method in ("GET", "HEAD"):
        async with gateway.client.request(method, gateway.url + "/v1/models") as response:
            assert response.status == 200
            assert response.headers["content-type"] == "application/json"
            assert (await response.read() == ANSWER) is (method == "GET")


@pytest.mark.parametrize("whole", [{"x-whole": "1"}, {}], ids=["with a length", "in chunks"])
@pytest.mark.parametrize("coding", PACKED)
async def test_a_packed_answer_passes_byte_for_byte(gateway, coding, whole):
    model = f"{coding} {len(whole)}"
    for each in (coding, "identity"):
        headers = {"x-coding": each, **whole}
        sent = chat("hello", model=model)
        async with (
            aiohttp.ClientSession(auto_decompress=False) as client,
            client.post(gateway.url + CHAT, json=sent, headers=headers) as answer,
        ):
            assert answer.headers["content-encoding"] == each
            assert await answer.read() == PACKED[each](ANSWER)
    await gateway.metric_becomes(4 if coding == "identity" else 2, OUTPUT, model_name=model)


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
async def test_a_packed_request_is_refused_where_it_would_be_read(gateway, coding):
    answer = await gateway.post(CHAT, gzip.compress(BODY), **{"content-encoding": coding})
    assert (answer.status, answer.headers[REASON]) == (415, "unsupported-content-encoding")
    assert answer.headers["accept-encoding"] == "identity"


async def test_a_packed_request_that_is_not_read_passes(gateway):
    # The model server unpacks it.
    packed = {"content-encoding": "gzip"}
    assert (await gateway.post("/v1/files", gzip.compress(BODY), **packed)).body == BODY


async def with_trailers(gateway, path, *pieces):
    """POST over HTTP/2, with trailers at the end; return the status and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    h2 = H2Connection(H2Configuration(client_side=True))
    h2.initiate_connection()
    head = {":method": "POST", ":scheme": "http", ":authority": "x", ":path": path}
    h2.send_headers(1, list(head.items()))
    for piece in pieces:
        h2.send_data(1, piece)
    h2.send_headers(1, [("x-checksum", "1")], end_stream=True)
    status, body = b"", b""
    async with asyncio.timeout(DEADLINE):
        while True:
            writer.write(h2.data_to_send())
            for event in h2.receive_data(await reader.read(1 << 16)):
                if isinstance(event, ResponseReceived):
                    status = dict(event.headers)[b":status"]
                elif isinstance(event, DataReceived):
                    body += event.data
                elif isinstance(event, StreamEnded):
                    writer.close()
                    return status, body


@contextlib.asynccontextmanager
async def showing(start, plan, **modes):
    """Start a gateway whose filter has other modes."""

    def change(manager):
        manager["http_filters"][0]["typed_config"]["processing_mode"] |= modes

    async with serving(odd) as target, start(replace(plan, others=(target,))) as gateway:
        await gateway.reconfigure(change)
        yield gateway


@pytest.mark.parametrize("shown", ["SEND", "SKIP"])
async def test_a_buffered_request_may_have_trailers_and_no_body(start, shown):
    plan = replace(BUFFERED, routing="original_dst")
    async with showing(start, plan, request_trailer_mode=shown) as gateway:
        for pieces in ((), (b"",), (b"some", b"thing")):
            answer = await with_trailers(gateway, "/v1/files", *pieces)
            assert answer == (b"200", b"".join(pieces))
        assert await gateway.idle()


@pytest.mark.parametrize("plan", [Plan(), BUFFERED], ids=["full duplex", "buffered"])
async def test_a_gateway_that_does_not_show_headers_is_told_at_once(start, plan):
    async with showing(start, plan, request_header_mode="SKIP") as gateway:
        answer = await gateway.post(CHAT, chat("hello"))
        assert (answer.status, answer.headers[REASON]) == (500, "headers-not-shown")
        assert "`request_header_mode` must be SEND" in answer.message
