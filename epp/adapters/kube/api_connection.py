"""HTTP requests to one API server, with renewal of credentials and two kinds of error."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException

from epp import __version__
from epp.adapters.kube.access import ApiSession, load
from epp.adapters.kube.kube_settings import KubeAccess
from epp.adapters.kube.retry_queue import RetryQueue
from epp.errors import ConfigError, WarmpickError
from epp.protocol.kube.watch import ApiRefused, read_status
from epp.system.logs import Log

_log = Log(__name__)

_CONNECT_SECONDS = 10.0
_MAX_BYTES, _MAX_STATUS_BYTES = 256 << 20, 1 << 20
"""Bytes of a response, at most: a list of 5,000 large pods has half of it; and of a refusal."""
_ABSENCES = (
    aiohttp.ClientOSError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ServerDisconnectedError,
)
_LOGGED_ABSENCE = 2
"""The first in a row is not logged: it may be an idle connection that a restart closed."""
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"warmpick/{__version__}",
}
"""Without compression: gzip would cost the API server more time than sending the bytes."""


Request = tuple[str, str, Mapping[str, Any] | None]
"""Method, path and JSON document."""


class ApiUnreachable(WarmpickError):
    """No response came, or it ended before it was complete.

    `absent`: nothing answers at that address; asking again soon costs nothing.
    """

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


class ApiConnection:
    """Requests to the API server of `access`; `open` comes first, `close` last.

    A token file is read again every minute (`kubernetes.aio`). After a 401, or a certificate that
    is not trusted, all credentials are read again and the request is sent once more: credentials
    may have been rotated.

    A caller that found the API server absent, or was refused for lack of rights (401, 403), waits
    at `absent` or `refused` before it asks again. Any response opens the first.
    """

    def __init__(self, access: KubeAccess) -> None:
        self._access = access
        self._session: ApiSession | None = None
        self._renewing = asyncio.Lock()
        self._renewals = 0
        self._fault: str | None = None  # of the last renewal; None once credentials are accepted
        self._token_fault = ""  # of the last look into the token file
        self._absences = 0
        self.absent = RetryQueue()
        self.refused = RetryQueue()

    async def open(self) -> None:
        """Read address and credentials; sends nothing. Raises `ConfigError`."""
        session = ApiSession(await load(self._access))
        self._session, before = session, self._session
        if before is not None:
            await before.retire()

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def host(self) -> str:
        """The API server's URL; empty before `open`."""
        return str(self._session.configuration.host) if self._session else ""

    async def request(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        seconds: float,
        most_bytes: int = 0,
    ) -> bytes:
        """Send a request and return the body of its response, within `seconds`.

        The body has `most_bytes` at most, without it what a large list may have. Raises
        `ApiRefused` and `ApiUnreachable`.
        """
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        with self._as_unreachable():
            response, session = await self._send_with_renewal((method, path, document), limits)
            try:
                return await _read(response, most_bytes or _MAX_BYTES)
            finally:
                response.close()
                await session.release()

    @asynccontextmanager
    async def stream(
        self, path: str, *, response_timeout: float, idle_timeout: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a GET and yield the chunks of its response's body as they come.

        The headers must come within `response_timeout` seconds, each chunk within `idle_timeout`
        seconds of the one before. Raises as `request` does, also while the body is read.
        """
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=idle_timeout
        )
        with self._as_unreachable():
            async with asyncio.timeout(response_timeout):
                response, session = await self._send_with_renewal(("GET", path, None), limits)
            try:
                yield response.content.iter_any()
            finally:
                response.close()
                await session.release()

    async def _send_with_renewal(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> tuple[aiohttp.ClientResponse, ApiSession]:
        """Send a request; once more with renewed credentials if these are refused."""
        renewals = self._renewals
        try:
            return await self._send(request, limits)
        except ApiRefused as refusal:
            if refusal.code != HTTPStatus.UNAUTHORIZED:
                raise
            await self._renew(renewals, str(refusal))
        except aiohttp.ClientConnectorCertificateError as error:
            await self._renew(renewals, str(error))
        return await self._send(request, limits)

    async def _send(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> tuple[aiohttp.ClientResponse, ApiSession]:
        session = self._session
        if session is None:
            raise ApiUnreachable("the connection is closed")
        method, path, document = request
        headers = {**_HEADERS, **await self._authorization(session.configuration)}
        response = await session.send((method, path, headers, document), limits)
        self._on_response()
        if response.status < HTTPStatus.BAD_REQUEST:
            self._fault = None
            return response, session
        try:
            body = await _read(response, _MAX_STATUS_BYTES)
        finally:
            response.close()
            await session.release()
        raise ApiRefused(
            read_status(response.status, body, response.headers.get("Retry-After", ""))
        )

    async def _authorization(self, configuration: Configuration) -> dict[str, str]:
        """Return the Authorization header: of the last token, if the token file is unreadable."""
        fault = ""
        try:
            key = await configuration.get_api_key_with_prefix("BearerToken")
        except (ConfigException, OSError, ValueError) as error:  # the last: no UTF-8
            fault, key = str(error), configuration.api_key.get("BearerToken")
        if fault not in {"", self._token_fault}:
            _log.warning("kube.token_unreadable", error=fault)
        self._token_fault = fault
        return {"Authorization": key.strip()} if key else {}

    async def _renew(self, renewals: int, reason: str) -> None:
        """Read credentials again, unless another request did so after this one was sent."""
        async with self._renewing:
            if self._renewals != renewals:
                return
            fault = ""
            try:
                await self.open()
            except ConfigError as error:
                fault = str(error)
            self._renewals += 1
            before, self._fault = self._fault, fault
            if fault and fault != before:
                _log.error("kube.credentials_unreadable", error=fault)
            elif fault != before:
                _log.warning("kube.credentials_renewed", because=reason)

    # Absence.

    def _on_response(self) -> None:
        if self._absences >= _LOGGED_ABSENCE:
            _log.info("kube.reachable", api=self.host)
        self._absences = 0
        self.absent.release()

    def _on_absence(self, error: aiohttp.ClientError) -> ApiUnreachable:
        """Log that nothing answers, once until something does; return what to raise."""
        message = str(error) or type(error).__name__
        self._absences += 1
        if self._absences == _LOGGED_ABSENCE:
            _log.warning("kube.unreachable", api=self.host, error=message)
        return ApiUnreachable(message, absent=True)

    @contextmanager
    def _as_unreachable(self) -> Iterator[None]:
        try:
            yield
        except _ABSENCES as error:
            raise self._on_absence(error) from error
        except TimeoutError as error:
            raise ApiUnreachable(str(error) or "no response in time") from error
        except aiohttp.ClientPayloadError as error:
            raise ApiUnreachable("the response broke off") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnreachable(str(error) or type(error).__name__) from error


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of a response. Raises `ApiUnreachable` for one of more than `most` bytes."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            raise ApiUnreachable(f"a response of more than {most} bytes")
    return b"".join(parts)
