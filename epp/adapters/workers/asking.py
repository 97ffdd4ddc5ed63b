"""Asks workers for their pages, over the Unix sockets at which they serve them."""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import aiohttp


class Asker:
    """A reader of one worker's pages."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        target: bytes,
        seconds: float,
        query: dict[str, str | int] | bytes = b"",
        accept: str = "*/*",
    ) -> tuple[HTTPStatus, bytes] | None:
        """Return the status and the body of a page; None if the worker does not answer in time."""
        if self._session is None:
            connector = aiohttp.UnixConnector(path=str(self._path))
            self._session = aiohttp.ClientSession(connector=connector)
        words = query.decode("ascii") if isinstance(query, bytes) else urlencode(query)
        url = f"http://localhost{target.decode('ascii')}" + (f"?{words}" if words else "")
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.get(url, headers={"Accept": accept}) as answer,
            ):
                return HTTPStatus(answer.status), await answer.read()
        except (aiohttp.ClientError, OSError, ValueError):  # TimeoutError is an OSError
            return None

    async def close(self) -> None:
        """Ask no more."""
        if self._session is not None:
            await self._session.close()
            self._session = None
