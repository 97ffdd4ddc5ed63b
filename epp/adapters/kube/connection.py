"""One API server over HTTP: bytes in and out, credentials kept fresh, failures as two errors."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
import structlog
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.config_exception import ConfigException

from epp import __version__
from epp.adapters.kube.access import load, rest
from epp.adapters.kube.settings import Access
from epp.errors import ConfigError, WarmpickError
from epp.protocol.kube.watch import ApiRefused, read_status

_log = structlog.get_logger(__name__)

_CONNECT_SECONDS = 10.0
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"warmpick/{__version__}",
}
"""Compressing lists would cost the API server more than sending them."""


class ApiUnreachable(WarmpickError):
    """No answer, or one that broke off."""


class Connection:
    """The API server that `access` leads to; `open` comes first, `close` last.

    A token file is read again every minute, and everything once more after a 401 or a certificate
    that is not trusted: both are how credentials that were rotated show.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._configuration = Configuration()
        self._rest: RESTClientObject | None = None
        self._renewing = asyncio.Lock()
        self._tries = 0

    async def open(self) -> None:
        """Read where the API server is, without asking it. Raises `ConfigError`."""
        configuration = await load(self._access)
        self._rest, before = rest(configuration), self._rest
        self._configuration = configuration
        if before is not None:
            await before.close()

    async def close(self) -> None:
        """Break off what is under way."""
        if self._rest is not None:
            await self._rest.close()
            self._rest = None

    @property
    def host(self) -> str:
        """The API server's URL."""
        return str(self._configuration.host)

    async def request(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        seconds: float,
    ) -> bytes:
        """Send a request, give the body of its answer, all within `seconds`.

        Raises `ApiRefused` and `ApiUnreachable`.
        """
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        with _as_unreachable():
            response = await self._answer(method, path, document, limits)
            async with response:
                return await response.read()

    @asynccontextmanager
    async def stream(
        self, path: str, *, answer: float, idle: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Give the body of an answer as it comes, for as long as no gap in it exceeds `idle`.

        The answer must begin within `answer`; both are in seconds.
        Raises as `request` does, while the body is read too.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=idle)
        with _as_unreachable():
            async with asyncio.timeout(answer):
                response = await self._answer("GET", path, None, limits)
            try:
                yield response.content.iter_any()
            finally:
                response.close()

    async def _answer(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Send a request; once more with fresh credentials where these were not accepted."""
        tries = self._tries
        try:
            return await self._ask(method, path, document, limits)
        except ApiRefused as refusal:
            if refusal.code != HTTPStatus.UNAUTHORIZED:
                raise
            await self._renew(tries, str(refusal))
        except aiohttp.ClientConnectorCertificateError as error:
            await self._renew(tries, str(error))
        return await self._ask(method, path, document, limits)

    async def _ask(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        if self._rest is None:
            raise ApiUnreachable("the connection is closed")
        headers = {**_HEADERS, **await self._authorization()}
        answer = await self._rest.request(
            method, self.host + path, headers, document, _request_timeout=limits
        )
        response: aiohttp.ClientResponse = answer.response
        if response.status < HTTPStatus.BAD_REQUEST:
            return response
        async with response:
            body = await response.read()
        raise ApiRefused(
            read_status(response.status, body, response.headers.get("Retry-After", ""))
        )

    async def _authorization(self) -> dict[str, str]:
        """Give the header that says who we are; a token file that is gone leaves the last one."""
        try:
            key = await self._configuration.get_api_key_with_prefix("BearerToken")
        except (ConfigException, OSError) as error:
            _log.warning("kube.token_unreadable", error=str(error))
            key = self._configuration.api_key.get("BearerToken")
        return {"Authorization": key.strip()} if key else {}

    async def _renew(self, tries: int, reason: str) -> None:
        """Read credentials again, unless another request did so since this one was sent."""
        async with self._renewing:
            if self._tries != tries:
                return
            self._tries += 1
            _log.warning("kube.credentials_renewed", because=reason)
            try:
                await self.open()
            except ConfigError as error:
                _log.error("kube.credentials_unreadable", error=str(error))


@contextmanager
def _as_unreachable() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ApiUnreachable(str(error) or "no answer in time") from error
    except aiohttp.ClientPayloadError as error:
        raise ApiUnreachable("the answer broke off") from error
    except (aiohttp.ClientError, OSError) as error:
        raise ApiUnreachable(str(error) or type(error).__name__) from error
