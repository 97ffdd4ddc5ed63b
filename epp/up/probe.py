"""The first look at model servers: which models they serve, and what would keep traffic away."""

import asyncio
import os
import ssl
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from epp.up.servers import Address, ModelServer

PROBE_SECONDS = 3.0
_MOST_BYTES = 1 << 20
_REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What one address answered: the names of its models, and what is wrong, for people.

    `wants_key`: it refuses requests without another API key than the one it was sent, if any.
    """

    address: Address
    models: tuple[str, ...] = ()
    problem: str = ""
    wants_key: bool = False


class Prober:
    """Asks addresses for `/v1/models` and `/metrics`, with a key if there is one.

    Those of `servers` are spoken to as their URLs say, others in plain HTTP.
    """

    def __init__(
        self, servers: Iterable[ModelServer], context: ssl.SSLContext | None, api_key: str
    ) -> None:
        self._servers = {server.authority: server for server in servers}
        self._context = context
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    async def probe(self, addresses: Iterable[Address]) -> Sequence[Probe]:
        """Ask all at once; takes `PROBE_SECONDS` at most."""
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=PROBE_SECONDS),
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0),
        ) as session:
            return await asyncio.gather(*(self._probe(session, each) for each in addresses))

    async def _probe(self, session: aiohttp.ClientSession, address: Address) -> Probe:
        try:
            status, body = await self._get(session, address, "/v1/models")
            page, _ = await self._get(session, address, "/metrics")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Probe(address=address, problem=f"does not answer ({_told(error)})")
        if page != HTTPStatus.OK:
            hint = "vLLM has one, SGLang with --enable-metrics"
            problem = f"has no metrics page (HTTP status {page}) and counts as down; {hint}"
            return Probe(address=address, problem=problem, wants_key=status in _REFUSED)
        return Probe(address=address, models=_models(body), wants_key=status in _REFUSED)

    async def _get(
        self, session: aiohttp.ClientSession, address: Address, path: str
    ) -> tuple[int, bytes]:
        server = self._servers.get(address.server)
        async with session.get(
            f"{server.scheme if server else 'http'}://{address.target}{path}",
            ssl=self._context or True,
            server_hostname=server.tls_name if server else None,
            headers={"host": address.server or address.target},
            allow_redirects=False,
        ) as response:
            return response.status, await response.content.read(_MOST_BYTES)


def _models(body: bytes) -> tuple[str, ...]:
    """Return the ids in OpenAI's list of models; none of what is no such list."""
    try:
        listed: Any = msgspec.json.decode(body)
        return tuple(str(model["id"]) for model in listed["data"])
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError):
        return ()


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing within {PROBE_SECONDS:g} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not accepted: {error.certificate_error}"
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:  # aiohttp's own text repeats the address
        return os.strerror(number)
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error.strerror or error.os_error)
    return str(error) or type(error).__name__
