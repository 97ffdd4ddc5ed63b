"""Pages of model servers, read as their URLs say."""

import ssl
from collections.abc import Iterable
from typing import Self

import aiohttp

from epp.up.servers import Address, ModelServer

MOST_METRICS_BYTES, MOST_MODELS_BYTES = 4 << 20, 1 << 20


class ServerPages:
    """Gets pages of addresses, with an API key if there is one, each within `seconds`.

    Those of `servers` are spoken to as their URLs say, others in plain HTTP.
    """

    def __init__(
        self,
        servers: Iterable[ModelServer],
        context: ssl.SSLContext | None,
        api_key: str,
        seconds: float,
    ) -> None:
        self._servers = {server.authority: server for server in servers}
        self._context = context
        # Compressed pages are not asked for, and not unpacked: a few bytes may become any number.
        headers = {"accept-encoding": "identity"}
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=seconds),
            headers=headers | ({"authorization": f"Bearer {api_key}"} if api_key else {}),
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
        )

    async def get(self, address: Address, path: str, most: int) -> tuple[int, bytes]:
        """Return the status and the whole page. Raises `aiohttp.ClientError` or `OSError`.

        The former for a page that breaks off, too, and for one of more than `most` bytes.
        """
        server = self._servers.get(address.server)
        async with self._session.get(
            f"{server.scheme if server else 'http'}://{address.target}{path}",
            ssl=self._context or True,
            server_hostname=server.tls_name if server else None,
            headers={"host": address.server or address.target},
            allow_redirects=False,
        ) as response:
            page = bytearray()
            # `StreamReader.read` of aiohttp returns what has come so far.
            async for piece in response.content.iter_any():
                page += piece
                if len(page) > most:
                    raise aiohttp.ClientPayloadError(f"{path} has more than {most} bytes")
            return response.status, bytes(page)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()
