"""The TLS of connections to pages: whom to trust, and which certificate to show."""

import ssl
from collections.abc import Callable
from pathlib import Path

import msgspec

from epp.adapters.scrape.page_client import unverified
from epp.errors import ConfigError, reason
from epp.system.files import Signature, signature_of
from epp.system.logs import Log
from epp.system.tls import unverified_tls

_log = Log(__name__)


class ClientTlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files by their paths, empty if there are none.

    Without `verify` any certificate of a server is accepted. With it `authorities` are trusted,
    by default the system's. `certificate` and `key` are shown to servers that ask.
    """

    verify: bool = False
    authorities: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that are read."""
        trusted = self.authorities if self.verify else ""
        return tuple(path for path in (trusted, self.certificate, self.key) if path)


def client_tls(settings: ClientTlsSettings) -> Callable[[], ssl.SSLContext]:
    """Return a function that gives the context of a new connection. Raises `ConfigError`.

    Files are read again when they have changed: as soon as a connection is made after that. If
    they cannot be used then, the last that could count, and that is logged once.
    """
    return _FollowedFiles(settings).context if settings.paths or settings.verify else unverified


class _FollowedFiles:
    def __init__(self, settings: ClientTlsSettings) -> None:
        self._settings = settings
        self._signatures = _signatures(settings)
        self._context = _context(settings)
        self._problem = ""

    def context(self) -> ssl.SSLContext:
        """Return the context, made anew if a file has changed."""
        try:
            signatures = _signatures(self._settings)
            if signatures != self._signatures:
                self._context = _context(self._settings)
                self._signatures, self._problem = signatures, ""
                _log.info("source.certificates_renewed", paths=self._settings.paths)
        except ConfigError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _log.warning("source.certificates_unusable", problem=self._problem)
        return self._context


def _signatures(settings: ClientTlsSettings) -> list[Signature]:
    """Return what changes with the files; a FIFO, which is refused, would stop the event loop."""
    return [signature_of(Path(path)) for path in settings.paths]


def _context(settings: ClientTlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if settings.verify else unverified_tls()
    if settings.verify and settings.authorities:
        try:
            context.load_verify_locations(settings.authorities)
        except OSError as error:  # ssl's own is one
            problem = f"holds no PEM certificate that can be trusted: {reason(error)}"
            raise ConfigError(problem, settings.authorities) from error
    elif settings.verify:
        context.load_default_certs()
    if settings.certificate:
        try:
            context.load_cert_chain(settings.certificate, settings.key, password="")
        except (OSError, ValueError) as error:
            problem = f"cannot be shown with the key {settings.key}: {reason(error)}"
            raise ConfigError(problem, settings.certificate) from error
    return context
