"""The picker's TLS certificate: read from files, or self-signed."""

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

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
from epp.system.logs import Log
from epp.system.tls import server_tls

KEY_FILE = "tls.key"
CERTIFICATE_FILE = "tls.crt"
"""The keys of a Kubernetes Secret of type `kubernetes.io/tls`, as files of its mount."""

MAX_BYTES = 1 << 20
"""The longest file that is read: as much as a Kubernetes Secret holds."""
_ORGANIZATION = "Warmpick"
_LIFETIME = dt.timedelta(days=3650)
_CLOCK_SKEW = dt.timedelta(hours=1)

_log = Log(__name__)


class ReaderTls:
    """TLS for the readers of a port over HTTP/1.1, with the files of a directory.

    With `client_ca`, readers need a certificate that one of its CAs (PEM) signed. `least` is the
    least version, `ciphers` are OpenSSL's names of suites up to TLS 1.2, empty for its own choice.
    Raises `ConfigError` for files that cannot be used. `context` serves with the newest ones.
    """

    def __init__(
        self, cert_path: Path, client_ca: Path | None, least: ssl.TLSVersion, ciphers: str
    ) -> None:
        certificate(cert_path)  # for its messages
        self._path = cert_path
        self._client_ca = client_ca
        self._least = least
        self._ciphers = ciphers
        self._newest = self.context = self._made()
        self.context.sni_callback = self._serve_newest

    def watch(self) -> "CertificateWatch":
        """Return the watch over the files, including those of CAs."""
        return CertificateWatch(self._path, self._renew, client_ca=self._client_ca)

    async def _renew(self, _: tuple[bytes, bytes]) -> None:
        self._newest = await in_daemon_thread(self._made)

    def _serve_newest(self, handshake: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        # Called for every handshake, whether or not its client names a server.
        handshake.context = self._newest

    def _made(self) -> ssl.SSLContext:
        """Return a context with the files as they are.

        One that is loaded again would keep its certificates for other types of keys, and its CAs.
        """
        context = server_tls(self._least, self._ciphers)
        context.load_cert_chain(self._path / CERTIFICATE_FILE, self._path / KEY_FILE)
        if self._client_ca is not None:
            try:
                trusted = read_regular(self._client_ca, MAX_BYTES).decode()
                context.load_verify_locations(cadata=trusted)
            except (ssl.SSLError, ValueError) as error:
                raise ConfigError(
                    "holds no PEM certificate that can be used", str(self._client_ca)
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class CertificateWatch:
    """Follows a certificate that is renewed while the picker runs, as cert-manager does.

    Calls `renew` with key and certificate (PEM) when they change, or `client_ca` does. Files are
    read every `interval` seconds, and tried once; those that cannot be read, or that `renew` raises
    `OSError` or `RuntimeError` for, are tried again. Each problem is logged once, also that a
    certificate has expired.
    """

    def __init__(
        self,
        cert_path: Path,
        renew: Callable[[tuple[bytes, bytes]], Awaitable[None]],
        interval: float = 10.0,
        client_ca: Path | None = None,
    ) -> None:
        self._path = cert_path
        self._renew = renew
        self._interval = interval
        self._client_ca = client_ca
        pair = certificate(cert_path)
        self._tried: tuple[tuple[bytes, bytes], bytes] | None = pair, self._read_ca()
        self._expires = _expiry(pair)
        self._problem: tuple[str, str] | None = None

    async def run(self) -> None:
        """Check the files at once and every `interval` seconds until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._interval)

    async def check(self) -> None:
        """Read the files; call `renew` if they changed."""
        try:
            read = await in_daemon_thread(lambda: (_read_pair(self._path), self._read_ca()))
            if read == self._tried:
                self._check_expiry()
                return
            self._tried, pair = read, read[0]
            files = self._path / KEY_FILE, self._path / CERTIFICATE_FILE
            await asyncio.to_thread(check_pair, pair, files)
            await self._renew(pair)
            self._expires = _expiry(pair)
        except (OSError, RuntimeError) as error:  # ssl's own is the first
            self._tried = None
            self._report(f"cannot be served with: {error}", str(self._path))
        except ConfigError as error:
            self._report(str(error), error.place)
        else:
            self._problem = None
            _log.info("certificate.renewed")

    def _check_expiry(self) -> None:
        if dt.datetime.now(dt.UTC) > self._expires:
            problem = f"it expired at {self._expires:%Y-%m-%dT%H:%MZ}: peers that verify it leave"
            self._report(problem, str(self._path / CERTIFICATE_FILE))

    def _read_ca(self) -> bytes:
        return b"" if self._client_ca is None else read_regular(self._client_ca, MAX_BYTES)

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


def _expiry(pair: tuple[bytes, bytes]) -> dt.datetime:
    return x509.load_pem_x509_certificates(pair[1])[0].not_valid_after_utc


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
