"""Pages of servers with a key or over TLS, however the network cuts them."""

import asyncio
import contextlib
import itertools
import socket
import ssl
import struct

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.adapters.tls import certificate
from epp.up.pages import MAX_METRICS_BYTES, MAX_MODELS_BYTES, PageRelay, ServerPages
from epp.up.probe import probe
from epp.up.servers import Address, model_servers

MODELS = b'{"data": [{"id": "llama"}, {"id": "lora"}]}'
METRICS = b"# HELP vllm:num_requests_waiting x\n" * 2_000 + b"vllm:num_requests_waiting 3\n"
WHOLE = {"/v1/models": MODELS, "/metrics": METRICS}


def with_length(body):
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def without_length(body):
    return b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body


def chunk(body):
    return b"%x\r\n" % len(body) + body + b"\r\n"


def chunked(body, size=1_000):
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(map(chunk, parts)) + b"0\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(pieces_of, tls=None):
    """A server that answers a path with pieces, each of which leaves by itself."""

    async def answer(reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            for piece in pieces_of(head.split(b" ")[1].decode()):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


def cut(data, at):
    bounds = [0, *sorted(at), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds) if start < end]


async def got(pieces_of, path, most=MAX_METRICS_BYTES):
    async with serving(pieces_of) as port:
        servers = model_servers([f"http://127.0.0.1:{port}"])
        async with ServerPages(servers, None, "key", 5) as pages:
            address = Address("a", "127.0.0.1", port, servers[0].authority)
            return await pages.get(address, path, most)


@pytest.mark.parametrize("framed", [with_length, without_length, chunked])
@settings(max_examples=30)
@given(at=st.sets(st.integers(1, len(METRICS)), max_size=40))
def test_a_page_is_whole_however_it_is_cut(framed, at):
    data = framed(METRICS)
    found = asyncio.run(got(lambda _: cut(data, at), "/metrics"))
    assert found == (200, METRICS)


async def test_a_page_of_single_bytes_is_whole():
    data = with_length(MODELS)
    found = await got(lambda _: cut(data, range(len(data))), "/v1/models")
    assert found == (200, MODELS)


async def test_the_longest_page_is_taken_and_one_byte_more_is_not():
    data = with_length(b"x" * 5_000)
    assert (await got(lambda _: [data], "/metrics", 5_000))[1] == b"x" * 5_000
    with pytest.raises(aiohttp.ClientPayloadError, match="/metrics has more than 4999 bytes"):
        await got(lambda _: [data], "/metrics", 4_999)


def endless(_path):
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    while True:
        yield b"vllm:num_requests_waiting 3\n" * 1_000


def broken(framed):
    return lambda path: [framed(WHOLE[path])[:-10]]


BAD = {
    "endless": (endless, "has more than"),
    "half of what was announced": (broken(with_length), "not completed"),
    "chunks without an end": (broken(chunked), "not completed"),
}


@pytest.mark.parametrize(("pieces_of", "problem"), BAD.values(), ids=BAD)
async def test_a_page_that_is_not_whole_is_none(pieces_of, problem):
    async with serving(pieces_of) as port:
        servers = model_servers([f"http://127.0.0.1:{port}"])
        address = Address("a", "127.0.0.1", port, servers[0].authority)
        (found,) = await probe([address], servers, None, "key")
        assert found.problem.startswith("does not answer (")
        assert problem in found.problem
        assert (await relayed(servers, address))[0] == 502


async def relayed(servers, address, context=None):
    relay = PageRelay(ServerPages(servers, context, "key", 5))
    try:
        hosts = await relay.hosts([address])
        url = f"http://{hosts[address.name]}/metrics"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            page = await response.read()
            return response.status, page if response.status == 200 else relay.relayed.problems["a"]
    finally:
        await relay.close()


@pytest.mark.parametrize("framed", [with_length, without_length, chunked])
async def test_the_picker_and_people_are_told_what_whole_pages_say(framed):
    def pieces_of(path):
        data = framed(WHOLE[path])
        return cut(data, range(0, len(data), 997))

    async with serving(pieces_of) as port:
        servers = model_servers([f"http://127.0.0.1:{port}"])
        address = Address("a", "127.0.0.1", port, servers[0].authority)
        (found,) = await probe([address], servers, None, "key")
        assert (found.models, found.problem) == (("llama", "lora"), "")
        assert await relayed(servers, address) == (200, METRICS)


async def test_urls_of_the_relay_stand_for_those_of_servers():
    servers = model_servers(["https://gpu1:8443", "http://10.0.0.2:8000"])
    behind = (
        Address("gpu1:8443-10.0.0.1", "10.0.0.1", 8443, "gpu1:8443"),
        Address("10.0.0.2:8000", "10.0.0.2", 8000, "10.0.0.2:8000"),
    )
    relay = PageRelay(ServerPages(servers, None, "key", 5))
    try:
        hosts = await relay.hosts(behind)
        assert relay.relayed.servers == {
            f"http://{hosts[behind[0].name]}": ("https://gpu1:8443", behind[0].name),
            f"http://{hosts[behind[1].name]}": ("http://10.0.0.2:8000", behind[1].name),
        }
    finally:
        await relay.close()


async def test_a_compressed_page_is_not_unpacked():
    bomb = b"\x1f\x8b" + b"x" * 100
    data = with_length(bomb).replace(b"OK\r\n", b"OK\r\ncontent-encoding: gzip\r\n")
    assert await got(lambda _: [data], "/v1/models", MAX_MODELS_BYTES) == (200, bomb)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """The context of a server with a certificate that nobody has signed."""
    folder = tmp_path_factory.mktemp("secure")
    key, chain = certificate(None)
    (folder / "key").write_bytes(key)
    (folder / "cert").write_bytes(chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context


@pytest.mark.parametrize(
    ("scheme", "tls", "problem"),
    [
        ("https", True, "has a certificate that is not accepted (self-signed certificate)"),
        ("http", True, "closes connections without an answer; is it https://?"),
        ("https", False, "does not speak TLS ("),
    ],
)
async def test_a_url_with_the_wrong_scheme_or_certificate_is_told(scheme, tls, problem, secure):
    pages = serving(lambda path: [with_length(WHOLE[path])], secure)
    async with pages if tls else puzzled() as port:
        servers = model_servers([f"{scheme}://127.0.0.1:{port}"])
        address = Address("a", "127.0.0.1", port, servers[0].authority)
        context = ssl.create_default_context() if scheme == "https" else None
        (found,) = await probe([address], servers, context, "")
        status, told = await relayed(servers, address, context)
        assert found.problem.startswith(problem)
        assert (status, told) == (502, found.problem)
        assert "SSL" not in told


async def test_a_server_that_resets_connections_may_speak_tls():
    async def reset(reader, writer):
        await reader.read(1)
        writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        writer.transport.abort()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        servers = model_servers([f"http://127.0.0.1:{port}"])
        address = Address("a", "127.0.0.1", port, servers[0].authority)
        (found,) = await probe([address], servers, None, "")
    assert found.problem == "closes connections without an answer; is it https://?"


@contextlib.asynccontextmanager
async def puzzled():
    """A server that speaks HTTP, and says so to who begins otherwise."""

    async def answer(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def refusing(*paths):
    """Pages of a server that requires a key for some."""
    no = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
    return lambda path: [no if path in paths else with_length(WHOLE[path])]


@pytest.mark.parametrize(
    ("paths", "key", "problem"),
    [
        (["/v1/models"], "", "requires an API key: the client's, or one from --upstream-api-key"),
        (["/v1/models", "/metrics"], "", "requires an API key for its metrics page too: set --up"),
        (["/metrics"], "", "requires an API key for its metrics page too: set --upstream-api-key"),
        (["/v1/models"], "wrong", "refuses the API key of --upstream-api-key-env"),
        (["/v1/models", "/metrics"], "wrong", "refuses the API key of --upstream-api-key-env"),
    ],
)
async def test_a_key_that_is_missing_or_wrong_is_told(paths, key, problem):
    async with serving(refusing(*paths)) as port:
        servers = model_servers([f"http://127.0.0.1:{port}"])
        address = Address("a", "127.0.0.1", port, servers[0].authority)
        (found,) = await probe([address], servers, None, key)
        assert found.problem.startswith(problem)
        assert found.wants_key == ("/v1/models" in paths)


@pytest.mark.parametrize(("status", "hinted"), [(404, True), (500, False)])
async def test_sglangs_flag_is_told_where_the_page_does_not_exist(status, hinted):
    def pieces_of(path):
        none = f"HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n".encode()
        return [none if path == "/metrics" else with_length(WHOLE[path])]

    async with serving(pieces_of) as port:
        (found,) = await probe([Address("a", "127.0.0.1", port)], (), None, "")
    assert found.problem.startswith(f"has no metrics page (HTTP status {status})")
    assert ("--enable-metrics" in found.problem) == hinted


async def test_a_list_of_models_that_is_nested_too_deeply_has_none():
    def pieces_of(path):
        return [with_length(b"[" * 100_000 if path == "/v1/models" else WHOLE[path])]

    async with serving(pieces_of) as port:
        (found,) = await probe([Address("a", "127.0.0.1", port)], (), None, "")
    assert (found.models, found.problem) == ((), "")
