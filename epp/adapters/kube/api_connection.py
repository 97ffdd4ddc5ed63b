"""One API server over HTTP: bytes in and out, credentials kept fresh, failures as two errors."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
import structlog
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException

from epp import __version__
from epp.adapters.kube.access import ApiSession, load
from epp.adapters.kube.kube_settings import KubeAccess
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


Request = tuple[str, str, Mapping[str, Any] | None]
"""Method, path and document."""


class ApiUnreachable(WarmpickError):
    """No answer, or one that broke off."""


class ApiConnection:
    """The API server that `access` leads to; `open` comes first, `close` last.

    A token file is read again every minute, and everything once more after a 401 or a certificate
    that is not trusted: both are how credentials that were rotated show.
    """

    def __init__(self, access: KubeAccess) -> None:
        self._access = access
        self._pool: ApiSession | None = None
        self._renewing = asyncio.Lock()
        self._tries = 0

    async def open(self) -> None:
        """Read where the API server is, without asking it. Raises `ConfigError`."""
        pool = ApiSession(await load(self._access))
        self._pool, before = pool, self._pool
        if before is not None:
            await before.retire()

    async def close(self) -> None:
        """Break off what is under way."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    @property
    def host(self) -> str:
        """The API server's URL; empty before `open`."""
        return str(self._pool.configuration.host) if self._pool else ""

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
            response, pool = await self._answer((method, path, document), limits)
            try:
                return await response.read()
            finally:
                response.close()
                await pool.leave()

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
                response, pool = await self._answer(("GET", path, None), limits)
            try:
                yield response.content.iter_any()
            finally:
                response.close()
                await pool.leave()

    async def _answer(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> tuple[aiohttp.ClientResponse, ApiSession]:
        """Send a request; once more with fresh credentials where these were not accepted."""
        tries = self._tries
        try:
            return await self._ask(request, limits)
        except ApiRefused as refusal:
            if refusal.code != HTTPStatus.UNAUTHORIZED:
                raise
            await self._renew(tries, str(refusal))
        except aiohttp.ClientConnectorCertificateError as error:
            await self._renew(tries, str(error))
        return await self._ask(request, limits)

    async def _ask(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> tuple[aiohttp.ClientResponse, ApiSession]:
        pool = self._pool
        if pool is None:
            raise ApiUnreachable("the connection is closed")
        method, path, document = request
        headers = {**_HEADERS, **await _authorization(pool.configuration)}
        response = await pool.send((method, path, headers, document), limits)
        if response.status < HTTPStatus.BAD_REQUEST:
            return response, pool
        try:
            body = await response.read()
        finally:
            response.close()
            await pool.leave()
        raise ApiRefused(
            read_status(response.status, body, response.headers.get("Retry-After", ""))
        )

    async def _renew(self, tries: int, reason: str) -> None:
        """Read credentials again, unless another request did so since this one was sent."""
        async with self._renewing:
            if self._tries != tries:
                return
            _log.warning("kube.credentials_renewed", because=reason)
            try:
                await self.open()
            except ConfigError as error:
                _log.error("kube.credentials_unreadable", error=str(error))
            self._tries += 1


async def _authorization(configuration: Configuration) -> dict[str, str]:
    """Give the header that says who we are; a token file that is gone leaves the last one."""
    try:
        key = await configuration.get_api_key_with_prefix("BearerToken")
    except (ConfigException, OSError) as error:
        _log.warning("kube.token_unreadable", error=str(error))
        key = configuration.api_key.get("BearerToken")
    return {"Authorization": key.strip()} if key else {}


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
