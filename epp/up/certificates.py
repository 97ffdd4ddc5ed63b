"""TLS of `epp up`: the certificate for clients, and the authorities for servers' certificates."""

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from epp.adapters.tls import MAX_BYTES, check_pair
from epp.app.process import file_of
from epp.errors import ConfigError
from epp.system.daemon_thread import in_daemon_thread
from epp.system.files import read_regular
from epp.system.tls import unverified_tls
from epp.up.proxy import CERTIFICATE_FILE, certificate_file, put

FOLLOW_SECONDS = 10.0
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/cert.pem",
)


class ServedCertificate:
    """The certificate and the key (PEM) that clients are shown, followed for changes.

    Envoy is given their paths, so that there is no copy of the key.
    """

    def __init__(self, chain: Path, key: Path, folder: Path) -> None:
        self._chain, self._key, self._folder = chain.absolute(), key.absolute(), folder
        self._pair = (b"", b"")
        self._turn = 0

    def load(self) -> bool:
        """Make Envoy read the files if they have changed; return whether they have.

        Raises `ConfigError` for files that do not fit together.
        """
        pair = _read(self._key, "--tls-key"), _read(self._chain, "--tls-cert")
        if pair == self._pair:
            return False
        try:
            check_pair(pair, (self._key, self._chain))
        except ConfigError as error:
            flag = "--tls-key" if error.place == str(self._key) else "--tls-cert"
            raise ConfigError(error.problem, f"{flag} {error.place}") from error
        # Envoy reads files again whose paths differ: `/x/./cert.pem` and `/x/cert.pem`.
        turn = 1 - self._turn
        chain, key = (
            f"{each.parent}/{'./' * turn}{each.name}" for each in (self._chain, self._key)
        )
        still = self._folder / "still"
        still.mkdir(exist_ok=True)
        put(self._folder / CERTIFICATE_FILE, certificate_file(chain, key, still))
        self._pair, self._turn = pair, turn
        return True

    async def run(self, say: Callable[[str], None]) -> NoReturn:
        """Follow the files until cancelled; report once a pair that cannot be used."""
        told = ""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                if await in_daemon_thread(self.load):
                    say("the certificate was renewed")
                told = ""
            except ConfigError as error:
                if str(error) != told:
                    told = str(error)
                    say(f"the new certificate cannot be used, and the old one stays: {told}")


def authorities(given: Path | None) -> Path:
    """Return the bundle for checking servers' certificates: the given one, or the system's.

    Raises `ConfigError` for one that cannot be used, and if the system has none.
    """
    if given is not None:
        _check_authorities(given)
        return given.absolute()
    paths = ssl.get_default_verify_paths()
    candidates = (os.environ.get("SSL_CERT_FILE"), paths.cafile, *_BUNDLES)
    for each in candidates:
        if each and Path(each).is_file():
            return Path(each)
    raise ConfigError("this system has no CA bundle; give one", "--upstream-ca-file")


def _check_authorities(path: Path) -> None:
    try:
        text = _read(path, "--upstream-ca-file").decode()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise ConfigError("has no certificate (PEM)", f"--upstream-ca-file {path}") from None


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return the TLS context of this process for servers: unverified without authorities."""
    if ca_file is None:
        return unverified_tls()
    return ssl.create_default_context(cafile=str(ca_file))


def _read(path: Path, flag: str) -> bytes:
    with file_of(flag):
        return read_regular(path, MAX_BYTES)
