"""Reads the operators' port of a running picker, for `epp explain` and `epp top`."""

import argparse
import http.client
import re
import ssl
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from epp.cli.files import read
from epp.cli.types import FILE
from epp.errors import ConfigError, reason
from epp.printable import without_user
from epp.system.tls import unverified_tls

T = TypeVar("T")

_SECONDS: Final = 10.0
_MAX_BYTES: Final = 16 << 20
_FLAG: Final = "--url"
_TOKEN: Final = re.compile(r"[!-~]+")
_HOST: Final = re.compile(r"[^\s\x00-\x1f]+")
_WHY: Final = {
    401: "it asks for a token; --token-file has one",
    403: "the token's account may not read it, or it serves readers on its own machine only",
    404: "it has no such page: is it the metrics port of a picker of this version?",
    503: "it cannot ask the API who may read it",
}


def add_port(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the port's address, and for the credentials."""
    group = parser.add_argument_group("the picker")
    group.add_argument(
        _FLAG,
        default="http://127.0.0.1:9090",
        help="its metrics port (default: %(default)s); HOST:PORT is http; in Kubernetes:"
        " kubectl port-forward deploy/NAME 9090",
    )
    group.add_argument(
        "--token-file",
        **FILE,
        help="the token of an account that may read the port, if it asks for one",
    )
    group.add_argument("--ca-file", **FILE, help="the CAs of its certificate (default: system)")
    group.add_argument(
        "--insecure", action="store_true", help="accept any certificate, such as a self-signed one"
    )


class OperatorsPort:
    """The port at a URL. Raises `ConfigError` if it cannot be read."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        given = arguments.url if "://" in arguments.url else f"http://{arguments.url}"
        self._url = without_user(given)
        try:
            url = urlsplit(given)
            self._host, self._port = url.hostname or "", url.port
        except ValueError:
            url = None
        if url is None or url.scheme not in {"http", "https"} or not _HOST.fullmatch(self._host):
            told = without_user(arguments.url)
            raise ConfigError(f"`{told}` is not like http://127.0.0.1:9090", _FLAG)
        self._tls = _context(arguments) if url.scheme == "https" else None
        token = arguments.token_file
        self._headers = {}
        if token is not None:
            text = read(token, "--token-file").decode("latin-1").strip()
            if not _TOKEN.fullmatch(text):
                raise ConfigError(f"{token} holds no token, which is one word", "--token-file")
            self._headers["Authorization"] = f"Bearer {text}"

    def read(self, path: str, kind: type[T], **query: str | int) -> T:
        """Return a page. Raises `ConfigError` if it cannot be read."""
        # A command line may have bytes that are not UTF-8, which no id of a request has.
        target = f"{path}?{urlencode(query, errors='replace')}" if query else path
        try:
            body = self._get(target)
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = f"{self._url}{path} is not what this version reads: {error}"
            raise ConfigError(problem, _FLAG) from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # a host of odd length
            problem = f"{self._url} cannot be read: {reason(error)}{self._hint(error)}"
            raise ConfigError(problem, _FLAG) from None

    def _hint(self, error: Exception) -> str:
        """Return a hint about a page that cannot be read."""
        match error:
            case ConnectionRefusedError():
                return "; is this the metrics port of a running picker?"
            case ssl.SSLCertVerificationError():
                return "; --ca-file names whom to trust, --insecure accepts any certificate"
            case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
                return "; is it http://?"
            case ConnectionResetError() | http.client.BadStatusLine() if self._tls is None:
                return "; is it https://?"
        return ""

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
            said = body.decode("utf-8", "replace").strip()[:200]
            problem = f"{response.status}: {_WHY.get(response.status, said)}"
            raise ConfigError(problem, _FLAG)
        return body


def _context(arguments: argparse.Namespace) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=arguments.ca_file)
    except ssl.SSLError:
        raise ConfigError(f"{arguments.ca_file} has no certificate (PEM)", "--ca-file") from None
    except OSError as error:
        problem = f"cannot read {arguments.ca_file}: {reason(error)}"
        raise ConfigError(problem, "--ca-file") from None
    return unverified_tls() if arguments.insecure else context
