"""The Redis that replicas reach: its address, users, passwords, certificates and failures."""

import re
import signal
import ssl
import subprocess
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from epp.adapters.replicas import redis_link
from epp.adapters.replicas.redis_server import RedisServer, redis_server
from epp.adapters.replicas.sealing import Seal
from epp.protocol.replicas.messages import Dropped
from tests.adapters.replicas.stations import ALL, OTHER, POOL, Station, meet, running, station
from tests.redis_process import HERE, redis_process
from tests.tasks import until

DOCS = Path(__file__).parents[3] / "docs" / "replicas.md"


def says(logs, word):
    return any(word in each.get("problem", "") for each in logs)


@pytest.mark.parametrize("kind", [("SET", "x"), ("LPUSH", "x")])
async def test_a_key_of_another_kind_is_said_and_outlived(server, kind):
    command, value = kind
    with capture_logs() as logs:
        async with station(server.address) as one, station(server.address) as other:
            await meet(one, other)
            server.do("DEL", ALL)
            server.do(command, ALL, value)
            one.streams.send(b"hello")
            await until(lambda: one.streams.send(b"hello") == 0)
            server.do("DEL", ALL)
            await until(lambda: one.works and other.works)
            await other.tell(b"again")
            await until(lambda: b"again" in one.heard)
    assert says(logs, "WRONGTYPE")


async def test_a_server_that_starts_again_empty_is_read_from_the_start(server):
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        await one.tell(b"hello")
        await until(lambda: other.heard == [b"hello"])
        server.kill()
        await until(lambda: one.streams.send(b"lost") == 0)
        assert one.streams.unsent
        assert one.streams.known == 1
        # What is written before the other one is back is read then: ids are those of the clock.
        server.start()
        server.do("XADD", ALL, "0-1", "m", Seal(OTHER).seal(ALL, b"early"))
        await until(lambda: one.dropped[Dropped.STRANGER] and other.dropped[Dropped.STRANGER])
        await one.tell(b"again")
        await until(lambda: other.heard[-1] == b"again")


async def test_acl_users_and_passwords_that_change(server, tmp_path):
    (right,) = re.findall(r"^(ACL SETUSER .*)$", DOCS.read_text(), re.MULTILINE)
    server.do(*right.replace("PASSWORD", "right").replace("default/llm", POOL).split())
    password = tmp_path / "password"
    password.write_text("wrong\n")
    address = server.address.replace("//", "//pickers@")
    with capture_logs() as logs:
        async with running(address, password=password) as one:
            await until(lambda: says(logs, "AuthenticationError"))
            assert one.streams.send(b"hello") == 0
            password.write_text("right\n")
            await until(lambda: one.works)
            async with station(address, password=password) as other:
                await meet(one, other)
                await one.tell(b"hello")
                await until(lambda: other.heard == [b"hello"])
    assert "right" not in str(logs)
    async with running(address.replace("//pickers@", "//"), pool="other/pool") as third:
        await third.tell(b"hello")  # nobody but this user was given a password


async def test_a_user_without_rights_is_said(server):
    server.do("ACL", "SETUSER", "pickers", "ON", "nopass", "~other:*", "+@all")
    with capture_logs() as logs:
        async with running(server.address.replace("//", "//pickers@")) as one:
            await until(lambda: says(logs, "NoPermissionError"))
            assert one.streams.send(b"hello") == 0
            assert one.streams.known == 1


def certificate(folder):
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=redis"
    subprocess.run(
        [
            *("openssl", *words.split(), "-addext", f"subjectAltName=IP:{HERE}"),
            *("-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


async def test_tls_with_a_certificate_of_ones_own(tmp_path):
    cert, key = certificate(tmp_path)
    files = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
    with redis_process(tmp_path, "--tls-auth-clients", "no", *map(str, files)) as server:
        server.kill()
        plain, server.port = server.port, server.port
        server.start("--tls-port", str(plain), "--port", "0")
        server.do("PING", ssl=True, ssl_ca_certs=str(cert))
        address = f"rediss://{HERE}:{plain}"
        with capture_logs() as logs:
            async with running(address):  # whom the system trusts has not signed it
                await until(lambda: says(logs, "VERIFY"))
        trusting = f"{address}?ssl_ca_certs={cert}"
        async with station(trusting) as one, station(trusting) as other:
            await meet(one, other)
            await one.tell(b"hello")
            await until(lambda: other.heard == [b"hello"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://redis", RedisServer(host="redis")),
        ("redis://10.0.0.1:7000/3", RedisServer(host="10.0.0.1", port=7000, database=3)),
        ("REDISS://redis/", RedisServer(host="redis", tls=True)),
        ("redis://pick%40ers@[::1]:1", RedisServer(host="::1", port=1, username="pick@ers")),
        (
            "rediss://redis?ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem",
            RedisServer(
                host="redis",
                tls=True,
                ssl_ca_certs="/ca.pem",
                ssl_certfile="/c.pem",
                ssl_keyfile="/k.pem",
            ),
        ),
    ],
)
def test_addresses_of_servers_are_read(text, expected):
    assert redis_server(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("redis://", "is not redis://"),
        ("redis://redis:0", "is not redis://"),
        ("redis://redis:port", "is not redis://"),
        ("redis://redis/x", "is not redis://"),
        ("redis://redis/0/1", "is not redis://"),
        ("redis://redis#x", "is not redis://"),
        ("redis://:secret@redis", "--replicas-password-file"),
        ("redis://redis?ssl_ca_certs=/ca.pem", "requires rediss://"),
        ("rediss://redis?ssl_keyfile=/k.pem", "requires ssl_certfile"),
        ("rediss://redis?ssl_cert_reqs=none", "`ssl_cert_reqs` is not an option"),
    ],
)
def test_what_is_not_the_address_of_a_server_is_said(text, message):
    with pytest.raises(ValueError, match=message):
        redis_server(text)


@pytest.mark.parametrize("error", [redis.RedisError("x"), ssl.SSLError("x"), TimeoutError()])
def test_what_fails_is_said_once_for_each_kind(error):
    station = Station("redis://redis")
    with capture_logs() as logs:
        for _ in range(3):
            station.streams._fails("read", error)
    assert len(logs) == 1
    assert type(error).__name__ in logs[0]["problem"]


async def test_why_nothing_is_kept_is_said_once_until_something_is(server, monkeypatch):
    store = Station(server.address).streams.store

    async def keep():
        async def parts():
            yield b"a part"

        await store.keep(parts())

    with capture_logs() as logs:
        for _ in range(2):
            server.signal(signal.SIGSTOP)
            with monkeypatch.context() as patched:
                patched.setattr(redis_link, "ANSWER_SECONDS", 0.1)
                await keep()
                await keep()
            server.signal(signal.SIGCONT)
            await keep()
    assert [each["problem"] for each in logs] == ["TimeoutError"] * 2
