"""The operators' port: profiles of the running process, and TLS for who reads it."""

import asyncio
import contextlib
import ssl
from http import HTTPStatus

import aiohttp
import pytest
from structlog.testing import capture_logs

from epp.adapters.telemetry.debug_pages import DebugPage, is_rebound
from epp.adapters.telemetry.http import OperatorServer, OperatorSettings
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.adapters.telemetry.profiles import PROFILES
from epp.adapters.tls import ReaderTls, certificate
from epp.errors import ConfigError
from tests.adapters.self_signed import KEYS, self_signed

GOOD = "good"
LEAST = ssl.TLSVersion.TLSv1_2


@contextlib.asynccontextmanager
async def serving(tls=None, **more):
    telemetry = Telemetry(MetricSources("pool", list, list, int))
    readers = OperatorSettings(**{"profiles": PROFILES, "tls": tls and tls.context} | more)
    server = OperatorServer(telemetry, lambda: True, "127.0.0.1", 0, readers)
    await server.start()
    try:
        root = f"{'https' if tls else 'http'}://127.0.0.1:{server.port}"
        async with aiohttp.ClientSession(root) as session:
            yield session
    finally:
        await server.stop()


async def read(session, path, **more):
    async with session.get(path, **more) as response:
        return response.status, await response.text()


async def spinning():
    while True:
        sum(range(2_000))
        await asyncio.sleep(0)


async def test_a_profile_counts_the_stacks_of_the_event_loop():
    async with serving() as session:
        spinner = asyncio.create_task(spinning(), name="spinner")
        status, text = await read(session, "/debug/pprof/profile?seconds=0.3")
        listed, tasks = await read(session, "/debug/pprof/goroutine")
        spinner.cancel()
    lines = [line.rpartition(" ") for line in text.splitlines()]
    assert (status, listed) == (200, 200)
    assert 1 <= sum(int(count) for *_, count in lines) <= 30  # 100 samples a second
    assert any(f"{__name__}.spinning" in stack for stack, *_ in lines)
    assert "spinner\n  " in tasks
    assert f"{__name__}.spinning" in tasks


async def test_one_profile_is_taken_at_a_time():
    async with serving() as session:
        path = "/debug/pprof/profile?seconds=0.5"
        answers = await asyncio.gather(*(read(session, path) for _ in range(3)))
        assert sorted(status for status, _ in answers) == [200, 429, 429]
        assert (await read(session, "/debug/pprof/profile?seconds=0.01"))[0] == 200


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "x", "nan", "1e9"])
async def test_a_time_that_makes_no_sense_is_refused(seconds):
    async with serving() as session:
        status, text = await read(session, f"/debug/pprof/profile?seconds={seconds}&x=%zz")
    assert (status, text) == (400, "seconds: a number from 0.01 to 60\n")


async def test_there_are_no_profiles_where_none_are_wanted():
    async with serving(profiles={}) as session:
        for path in ("/debug/pprof/", "/debug/pprof/profile", "/debug/pprof/goroutine"):
            assert (await read(session, path))[0] == 404


async def test_who_may_not_read_gets_no_profile():
    asked = []

    async def review(token, path):
        asked.append((token, path))
        return HTTPStatus.FORBIDDEN

    async with serving(review=review) as session:
        headers = {"Authorization": "Bearer t"}
        assert (await read(session, "/debug/pprof/profile?seconds=1", headers=headers))[0] == 403
        assert (await read(session, "/debug/pprof/"))[0] == 403
    assert asked == [("t", "/debug/pprof/profile"), ("", "/debug/pprof/")]


def store(folder, pair):
    for name, content in zip(("tls.key", "tls.crt"), pair, strict=True):
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path):
    return store(tmp_path, certificate(None))


@pytest.fixture
def clients(tmp_path_factory):
    """Two folders with the certificate of a client, which is its own CA."""
    return [store(tmp_path_factory.mktemp(name), self_signed("EC", name)) for name in "ab"]


def trusting(folder, known=None):
    """A reader that trusts the server, and shows a certificate of its own where it has one."""
    context = ssl.create_default_context(cafile=folder / "tls.crt")
    if known is not None:
        context.load_cert_chain(known / "tls.crt", known / "tls.key")
    return context


async def test_readers_have_tls(folder):
    tls = ReaderTls(folder, None, LEAST, "")
    async with serving(tls) as session:
        assert (await read(session, "/healthz", ssl=trusting(folder)))[0] == 200
        old = trusting(folder)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await read(session, "/healthz", ssl=old))[0] == 200
    async with serving(ReaderTls(folder, None, ssl.TLSVersion.TLSv1_3, "")) as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await read(session, "/healthz", ssl=old)


async def refused(session, context):
    """Check that a reader gets nothing."""
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await read(session, "/healthz", ssl=context)


async def test_readers_show_a_certificate_where_a_ca_is_given(folder, clients):
    known, stranger = clients
    async with serving(ReaderTls(folder, known / "tls.crt", LEAST, "")) as session:
        for context in (trusting(folder), trusting(folder, stranger)):
            await refused(session, context)
        assert (await read(session, "/healthz", ssl=trusting(folder, known)))[0] == 200


@pytest.mark.parametrize("kind", KEYS)
async def test_a_renewed_certificate_is_served(folder, kind):
    """With a key of another kind, too: a context has one certificate for each kind."""
    tls = ReaderTls(folder, None, LEAST, "")
    watch = tls.watch()
    async with serving(tls) as session:
        before = trusting(folder)
        store(folder, self_signed(kind))
        await watch.check()
        assert (await read(session, "/healthz", ssl=trusting(folder)))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await read(session, "/healthz", ssl=before)


def trusted_by(folder, known):
    """TLS whose readers need a certificate of one CA, and the file of that CA."""
    ca = folder / "ca.crt"
    ca.write_bytes((known / "tls.crt").read_bytes())
    return ReaderTls(folder, ca, LEAST, ""), ca


@pytest.mark.parametrize("renewed", ["the CA", "both"])
async def test_a_renewed_ca_decides_who_reads(folder, clients, renewed):
    old, new = clients
    tls, ca = trusted_by(folder, old)
    watch = tls.watch()
    async with serving(tls) as session:
        ca.write_bytes((new / "tls.crt").read_bytes())
        if renewed == "both":
            store(folder, self_signed("RSA"))
        await watch.check()
        await refused(session, trusting(folder, old))
        assert (await read(session, "/healthz", ssl=trusting(folder, new)))[0] == 200


async def test_a_ca_that_cannot_be_used_leaves_the_one_before(folder, clients):
    known, _ = clients
    tls, ca = trusted_by(folder, known)
    watch = tls.watch()
    async with serving(tls) as session:
        ca.write_bytes(b"oops")
        with capture_logs() as logs:
            await watch.check()
        assert [(line["event"], line["place"]) for line in logs] == [
            ("certificate.unusable", str(ca))
        ]
        assert (await read(session, "/healthz", ssl=trusting(folder, known)))[0] == 200


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tls.key", None, "tls.key: cannot be read: No such file"),
        ("tls.key", b"x", "tls.key: holds no PEM private key"),
        ("ca.crt", None, "ca.crt: cannot be read: No such file"),
        ("ca.crt", b"x", "ca.crt: holds no PEM certificate"),
        ("ca.crt", b"\xff", "ca.crt: holds no PEM certificate"),
    ],
)
def test_files_that_cannot_be_used(name, content, said, folder):
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        ReaderTls(folder, folder / "ca.crt", LEAST, "")


async def hello(_):
    return b"hello"


PAGES = {
    b"/still": DebugPage(hello, content_type="text/html", etag='"1"'),
    b"/moving": DebugPage(hello),
}
POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
}


async def test_a_browser_may_run_nothing_from_elsewhere():
    async with serving(debug=PAGES) as session:
        for path in ("/still", "/moving", "/moving?a"):
            async with session.get(path) as response:
                headers = response.headers
            assert set(headers["Content-Security-Policy"].split("; ")) == POLICY
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


async def test_a_page_that_has_not_changed_is_not_sent_again():
    async with serving(debug=PAGES) as session:
        for sent, status in (('"1"', 304), ('W/"1"', 304), ('"2"', 200), ("", 200)):
            async with session.get("/still", headers={"If-None-Match": sent}) as response:
                assert (response.status, response.headers["ETag"]) == (status, '"1"')
                assert response.headers["Content-Length"] == "5"
                assert await response.read() == (b"" if status == 304 else b"hello")
        async with session.get("/moving", headers={"If-None-Match": ""}) as response:
            assert (response.status, response.headers["Cache-Control"]) == (200, "no-store")
            assert "ETag" not in response.headers


async def test_a_name_that_leads_here_opens_no_debug_page():
    async def review(token, _):
        return HTTPStatus.OK if token == GOOD else HTTPStatus.UNAUTHORIZED

    strange = {"Host": "attacker.example:9090"}
    async with serving(debug=PAGES) as session:
        status, text = await read(session, "/still", headers=strange)
        assert (status, "by localhost or by an address" in text) == (403, True)
        assert (await read(session, "/healthz", headers=strange))[0] == 200
    async with serving(debug=PAGES, review=review) as session:
        assert (await read(session, "/still", headers=strange))[0] == 401
        strange["Authorization"] = f"Bearer {GOOD}"
        assert (await read(session, "/still", headers=strange))[0] == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("", False),
        ("localhost", False),
        ("LOCALHOST:9090", False),
        ("x.localhost.:1", False),
        ("127.0.0.1:9090", False),
        ("10.1.2.3", False),
        ("[::1]:9090", False),
        ("[::1", False),
        ("example.com", True),
        ("127.0.0.1.example.com:80", True),
        ("localhost.example.com", True),
        ("xlocalhost", True),
        ("[example]", True),
        ("127.1", True),
        (":", False),
    ],
)
def test_names_that_a_site_can_choose(host, expected):
    assert is_rebound(host) is expected
