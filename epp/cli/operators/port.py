"""Reads the operators' port of a running picker, for `epp explain` and `epp top`."""

import argparse
import http.client
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from epp.cli.files import read
from epp.errors import ConfigError, reason

T = TypeVar("T")

_SECONDS: Final = 10.0
_MAX_BYTES: Final = 16 << 20
_FLAG: Final = "--url"


def add_port(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the port's address, and for the credentials."""
    group = parser.add_argument_group("the picker")
    group.add_argument(
        _FLAG,
        default="http://127.0.0.1:9090",
        help="its metrics port (default: %(default)s); in Kubernetes: kubectl port-forward"
        " deploy/NAME 9090",
    )
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the token of an account that may read the port, if it asks for one",
    )
    group.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="the CAs of its certificate (default: system)"
    )
    group.add_argument(
        "--insecure", action="store_true", help="accept any certificate, such as a self-signed one"
    )


class OperatorsPort:
    """The port at a URL. Raises `ConfigError` if it cannot be read."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        url = urlsplit(arguments.url)
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise ConfigError(f"`{arguments.url}` is not like http://127.0.0.1:9090", _FLAG)
        try:
            self._port = url.port
        except ValueError as error:
            raise ConfigError(str(error), _FLAG) from None
        self._url = arguments.url
        self._host = url.hostname
        self._tls = _context(arguments) if url.scheme == "https" else None
        token = arguments.token_file
        self._headers = {}
        if token is not None:
            text = read(token, "--token-file").decode("latin-1").strip()
            self._headers["Authorization"] = f"Bearer {text}"

    def read(self, path: str, kind: type[T], **query: str | int) -> T:
        """Return a page. Raises `ConfigError` if it cannot be read."""
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            body = self._get(target)
            return msgspec.json.decode(body, type=kind)
        except (OSError, http.client.HTTPException) as error:
            problem = f"{self._url} cannot be read: {reason(error)}"
            if isinstance(error, ConnectionRefusedError):
                problem += "; is this the metrics port of a running picker?"
            raise ConfigError(problem, _FLAG) from None
        except msgspec.DecodeError as error:
            problem = f"{self._url}{path} is not what this version reads: {error}"
            raise ConfigError(problem, _FLAG) from None

    def _get(self, target: str) -> bytes:
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=_SECONDS, context=self._tls
            )
        try:
            connection.request("GET", target, headers=self._headers)
            response = connection.getresponse()
            body = response.read(_MAX_BYTES)
        finally:
            connection.close()
        if response.status != HTTPStatus.OK:
            raise ConfigError(_refusal(response.status, body), _FLAG)
        return body


def _context(arguments: argparse.Namespace) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=arguments.ca_file)
    except OSError as error:
        raise ConfigError(f"cannot be read: {reason(error)}", "--ca-file") from None
    if arguments.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


_WHY: Final = {
    401: "it asks for a token; --token-file has one",
    403: "the token's account may not read it, or it serves readers on its own machine only",
    404: "it has no such page: is it the metrics port of a picker of this version?",
    503: "it cannot ask the API who may read it",
}


def _refusal(status: int, body: bytes) -> str:
    said = body.decode("utf-8", "replace").strip()[:200]
    return f"{status}: {_WHY.get(status, said)}"
