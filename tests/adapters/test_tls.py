import asyncio
import datetime as dt
import os
import ssl
import subprocess
import sys

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from structlog.testing import capture_logs

from epp.adapters.tls import CertificateWatch, certificate
from epp.errors import ConfigError


def pem(key, encryption=None):
    form = PrivateFormat.PKCS8
    return key.private_bytes(Encoding.PEM, form, encryption or NoEncryption())


def store(directory, key, chain):
    (directory / "tls.key").write_bytes(key)
    (directory / "tls.crt").write_bytes(chain)
    return directory


async def test_the_self_signed_pair_passes_a_handshake_that_verifies_it(tmp_path):
    store(tmp_path, *certificate(None))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")

    async def greet(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=serving)
    async with server, asyncio.timeout(10):
        port = server.sockets[0].getsockname()[1]
        trusting = ssl.create_default_context(cafile=tmp_path / "tls.crt")
        for host in ("localhost", "127.0.0.1"):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusting, server_hostname=host
            )
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"
            writer.close()
            await writer.wait_closed()


async def test_grpc_serves_with_the_self_signed_pair():
    key, chain = certificate(None)
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, chain)]))
    await server.start()
    try:
        credentials = grpc.ssl_channel_credentials(chain)
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
            await asyncio.wait_for(channel.channel_ready(), 10)
            assert channel.get_state() is grpc.ChannelConnectivity.READY
    finally:
        await server.stop(None)


def test_the_self_signed_certificates_fields():
    signed = x509.load_pem_x509_certificate(certificate(None)[1])
    assert signed.subject.rfc4514_string() == "O=Warmpick"
    now = dt.datetime.now(dt.UTC)
    assert signed.not_valid_before_utc < now
    assert (signed.not_valid_after_utc - now).days in range(3645, 3651)
    assert isinstance(signed.public_key(), ec.EllipticCurvePublicKey)
    assert certificate(None) != certificate(None)


def test_an_operators_pair_is_returned_unchanged(tmp_path):
    pair = certificate(None)
    other = certificate(None)[1]
    assert certificate(store(tmp_path, *pair)) == pair
    chain = pair[1] + other
    assert certificate(store(tmp_path, pair[0], chain)) == (pair[0], chain)


async def test_a_pair_that_is_renewed_is_handed_on_once(tmp_path):
    first, second = certificate(None), certificate(None)
    store(tmp_path, *first)
    seen: list[tuple[bytes, bytes]] = []
    watch = CertificateWatch(tmp_path, renewing(seen.append))
    await watch.check()
    assert seen == []
    store(tmp_path, *second)
    for _ in range(2):
        await watch.check()
    assert seen == [second]
    store(tmp_path, *first)
    await watch.check()
    assert seen == [second, first]


async def test_a_pair_that_is_half_renewed_is_waited_for(tmp_path):
    first, second = certificate(None), certificate(None)
    store(tmp_path, *first)
    seen: list[tuple[bytes, bytes]] = []
    watch = CertificateWatch(tmp_path, renewing(seen.append))
    (tmp_path / "tls.key").write_bytes(second[0])
    with capture_logs() as logs:
        await watch.check()
    assert [line["event"] for line in logs] == ["certificate.unusable"]
    assert seen == []
    (tmp_path / "tls.crt").write_bytes(second[1])
    await watch.check()
    assert seen == [second]


def renewing(seen):
    async def renew(pair):
        seen(pair)

    return renew


async def test_a_pair_that_cannot_be_served_is_tried_again(tmp_path):
    first, second = certificate(None), certificate(None)
    store(tmp_path, *first)
    refusals, seen = [ssl.SSLError("too small"), RuntimeError("no port")], []

    async def renew(pair):
        if refusals:
            raise refusals.pop()
        seen.append(pair)

    watch = CertificateWatch(tmp_path, renew)
    store(tmp_path, *second)
    with capture_logs() as logs:
        for _ in range(4):
            await watch.check()
    events = [line["event"] for line in logs]
    assert events == ["certificate.unusable", "certificate.unusable", "certificate.renewed"]
    assert seen == [second]


async def test_a_pair_that_cannot_be_used_is_said_once_however_often_it_is_read(tmp_path):
    store(tmp_path, *certificate(None))
    seen: list[tuple[bytes, bytes]] = []
    watch = CertificateWatch(tmp_path, renewing(seen.append))
    store(tmp_path, certificate(None)[0], certificate(None)[1])
    with capture_logs() as logs:
        for _ in range(3):
            await watch.check()
    assert [line["event"] for line in logs] == ["certificate.unusable"]
    assert seen == []


async def test_that_a_certificate_has_expired_is_said_once(tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    store(tmp_path, pem(key), expired(key))
    watch = CertificateWatch(tmp_path, renewing(lambda _: None))
    with capture_logs() as logs:
        for _ in range(3):
            await watch.check()
        for pair in (certificate(None), (pem(key), expired(key))):
            store(tmp_path, *pair)
            for _ in range(3):
                await watch.check()
    said, *renewed, again = logs
    assert [line["event"] for line in renewed] == ["certificate.renewed"] * 2
    assert said == again
    assert said["place"] == str(tmp_path / "tls.crt")
    assert "it expired at 2020-01-02T00:00Z" in said["problem"]


def expired(key):
    """Return a certificate that was valid for a day."""
    name = x509.Name([])
    day = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, day, day + dt.timedelta(1))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (lambda path: path.mkdir(), "is not a regular file"),
        (lambda path: path.write_bytes(b"x" * (1 << 20) + b"x"), "longer than 1048576 bytes"),
    ],
)
async def test_whatever_a_file_becomes_the_last_pair_stays(tmp_path, make, problem):
    first, second = certificate(None), certificate(None)
    store(tmp_path, *first)
    seen: list[tuple[bytes, bytes]] = []
    watch = CertificateWatch(tmp_path, renewing(seen.append))
    (tmp_path / "tls.crt").unlink()
    make(tmp_path / "tls.crt")
    with capture_logs() as logs:
        for _ in range(2):
            await watch.check()
    assert [line["place"] for line in logs] == [str(tmp_path / "tls.crt")]
    assert problem in logs[0]["problem"]
    (tmp_path / "tls.crt").rename(tmp_path / "old")
    store(tmp_path, *second)
    await watch.check()
    assert seen == [second]


SHORTAGE = """
import asyncio, os, resource, sys
from pathlib import Path
from structlog.testing import capture_logs
from epp.adapters.tls import CertificateWatch, certificate

async def main(directory):
    renewed = []
    async def renew(pair):
        renewed.append(pair)
    watch = CertificateWatch(Path(directory), renew)
    pair = certificate(None)
    writing = [open(f"{directory}/{name}", "wb") for name in ("tls.key", "tls.crt")]
    await watch.check()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    for file, pem in zip(writing, pair):
        file.write(pem)
        file.flush()
    with capture_logs() as logs:
        await watch.check()
        print(logs[0]["event"], logs[0]["problem"])
        for each in held:
            os.close(each)
        await watch.check()
    print(renewed == [pair])

asyncio.run(main(sys.argv[1]))
"""


def test_a_renewal_during_a_shortage_of_descriptors_is_read_after_it(tmp_path):
    store(tmp_path, *certificate(None))
    child = [sys.executable, "-c", SHORTAGE, tmp_path]
    said = subprocess.run(child, capture_output=True, text=True, timeout=30, check=True)
    refused, renewed = said.stdout.splitlines()[-2:]
    assert refused.startswith("certificate.unusable ")
    assert refused.endswith("Too many open files")
    assert renewed == "True"


async def test_the_files_are_checked_repeatedly(tmp_path):
    store(tmp_path, *certificate(None))
    renewed = asyncio.Event()
    watch = CertificateWatch(tmp_path, renewing(lambda _: renewed.set()), interval=0.01)
    looking = asyncio.create_task(watch.run())
    store(tmp_path, *certificate(None))
    await asyncio.wait_for(renewed.wait(), 10)
    looking.cancel()


KEY, CHAIN = certificate(None)
ENCRYPTED = pem(ec.generate_private_key(ec.SECP256R1()), BestAvailableEncryption(b"secret"))


@pytest.mark.parametrize(
    ("key", "chain", "file", "problem"),
    [
        (KEY, None, "tls.crt", "No such file"),
        (None, CHAIN, "tls.key", "No such file"),
        (b"", CHAIN, "tls.key", "no PEM private key"),
        (KEY, b"garbage", "tls.crt", "no PEM certificate"),
        (CHAIN, KEY, "tls.key", "no PEM private key"),
        (certificate(None)[0], CHAIN, "tls.key", "does not belong to"),
        (ENCRYPTED, CHAIN, "tls.key", "encrypted"),
    ],
)
def test_errors_name_the_file(tmp_path, key, chain, file, problem):
    for name, content in (("tls.key", key), ("tls.crt", chain)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as raised:
        certificate(tmp_path)
    assert raised.value.place == str(tmp_path / file)
