"""The picker's TLS certificate: read from files, or self-signed."""

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from epp.errors import ConfigError
from epp.system.daemon_thread import in_daemon_thread
from epp.system.files import read_regular

KEY_FILE = "tls.key"
CERTIFICATE_FILE = "tls.crt"
"""The keys of a Kubernetes Secret of type `kubernetes.io/tls`, as files of its mount."""

MAX_BYTES = 1 << 20
"""The longest file that is read: as much as a Kubernetes Secret holds."""
_ORGANIZATION = "Warmpick"
_LIFETIME = dt.timedelta(days=3650)
_CLOCK_SKEW = dt.timedelta(hours=1)

_log = structlog.get_logger()


class ReaderTls:
    """TLS for the readers of a port over HTTP/1.1, with the files of a directory.

    With `client_ca`, readers need a certificate that one of its CAs (PEM) signed. `least` is the
    least version, `ciphers` are OpenSSL's names of suites up to TLS 1.2, empty for its own choice.
    Raises `ConfigError` for files that cannot be used.
    """

    def __init__(
        self, cert_path: Path, client_ca: Path | None, least: ssl.TLSVersion, ciphers: str
    ) -> None:
        certificate(cert_path)  # for its messages
        self.path = cert_path
        self.context = context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = least
        if ciphers:
            context.set_ciphers(ciphers)
        self._load()
        if client_ca is not None:
            try:
                context.load_verify_locations(cadata=read_regular(client_ca, MAX_BYTES).decode())
            except (ssl.SSLError, ValueError) as error:
                raise ConfigError(
                    "holds no PEM certificate that can be used", str(client_ca)
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED

    async def renew(self, _: tuple[bytes, bytes]) -> None:
        """Serve with the files as they are from the next handshake on. Raises `OSError`."""
        self._load()

    def _load(self) -> None:
        self.context.load_cert_chain(self.path / CERTIFICATE_FILE, self.path / KEY_FILE)


class CertificateWatch:
    """Follows a certificate that is renewed while the picker runs, as cert-manager does.

    Calls `renew` with key and certificate (PEM) when they change. Files are read every `interval`
    seconds, and a pair is tried once; one that cannot be read, or that `renew` raises `OSError` or
    `RuntimeError` for, is tried again. Each problem is logged once.
    """

    def __init__(
        self,
        cert_path: Path,
        renew: Callable[[tuple[bytes, bytes]], Awaitable[None]],
        interval: float = 10.0,
    ) -> None:
        self._path = cert_path
        self._renew = renew
        self._interval = interval
        self._tried: tuple[bytes, bytes] | None = certificate(cert_path)
        self._problem: tuple[str, str] | None = None

    async def run(self) -> None:
        """Check the files every `interval` seconds until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.check()

    async def check(self) -> None:
        """Read the files; call `renew` if they changed."""
        try:
            pair = await in_daemon_thread(_read_pair, self._path)
            if pair == self._tried:
                return
            self._tried = pair
            files = self._path / KEY_FILE, self._path / CERTIFICATE_FILE
            await asyncio.to_thread(check_pair, pair, files)
            await self._renew(pair)
        except (OSError, RuntimeError) as error:  # ssl's own is the first
            self._tried = None
            self._report(f"cannot be served with: {error}", str(self._path))
        except ConfigError as error:
            self._report(str(error), error.place)
        else:
            self._problem = None
            _log.info("certificate.renewed")

    def _report(self, problem: str, place: str) -> None:
        if (problem, place) != self._problem:
            self._problem = problem, place
            _log.warning("certificate.unusable", place=place, problem=problem)


def certificate(cert_path: Path | None) -> tuple[bytes, bytes]:
    """Return the private key and the certificate chain, both PEM.

    Reads `tls.key` and `tls.crt` in the directory `cert_path`; None makes a self-signed pair for
    localhost, valid for ten years. Raises `ConfigError` for files that cannot be read, that are
    no unencrypted PEM, or that do not belong together.
    """
    if cert_path is None:
        return _self_signed()
    pair = _read_pair(cert_path)
    check_pair(pair, (cert_path / KEY_FILE, cert_path / CERTIFICATE_FILE))
    return pair


def _read_pair(cert_path: Path) -> tuple[bytes, bytes]:
    key, chain = cert_path / KEY_FILE, cert_path / CERTIFICATE_FILE
    return read_regular(key, MAX_BYTES), read_regular(chain, MAX_BYTES)


def check_pair(pair: tuple[bytes, bytes], files: tuple[Path, Path]) -> None:
    """Check a key and a certificate chain (PEM), which are of two files.

    Raises `ConfigError` with the file as its place if they cannot be used together.
    """
    (key, chain), (key_file, certificate_file) = pair, files
    if _public_key_of_key(key, key_file) != _public_key_of_chain(chain, certificate_file):
        raise ConfigError(f"the key does not belong to {certificate_file}", str(key_file))


def _public_key_of_key(pem: bytes, path: Path) -> bytes:
    try:
        public = load_pem_private_key(pem, password=None).public_key()
        return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except TypeError as error:
        raise ConfigError(
            "the key is encrypted, and no password can be given", str(path)
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError("holds no PEM private key that can be used", str(path)) from error


def _public_key_of_chain(pem: bytes, path: Path) -> bytes:
    """Return the public key of the leaf."""
    try:
        # RFC 8446 §4.4.2: the sender's certificate comes first in a chain.
        public = x509.load_pem_x509_certificates(pem)[0].public_key()
        return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError("holds no PEM certificate that can be used", str(path)) from error


def _self_signed() -> tuple[bytes, bytes]:
    """Return a self-signed pair on P-256, which takes a thousandth of the time of an RSA key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION)])
    start = dt.datetime.now(dt.UTC) - _CLOCK_SKEW
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + _LIFETIME)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem, signed.public_bytes(Encoding.PEM)
