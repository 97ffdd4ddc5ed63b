"""A model server for bodies that are large or come in many pieces, either way."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
from aiohttp import web

from e2e.serving import serving

EDITION = "x-press-edition"
WAITS = "x-press-waits"
MAX_BYTES = 64 << 20


class Edition(msgspec.Struct, frozen=True):
    """A response: its headers, and its body in the pieces that are written."""

    headers: Mapping[str, str]
    pieces: Sequence[bytes]

    @property
    def digest(self) -> str:
        """Name the body."""
        return digest(b"".join(self.pieces))


class Press:
    """Prints the edition that a request names; without one, the digest of the request's body.

    A request with `x-press-waits` is read from when `reading` is set. `written` counts the bytes
    of editions that the gateway has taken.
    """

    def __init__(self) -> None:
        self.target = ""
        self.editions: dict[str, Edition] = {}
        self.reading = asyncio.Event()
        self.waiting = 0
        self.written = 0
        self._at = 0.0

    async def answer(self, http: web.Request) -> web.StreamResponse:
        """Answer a request."""
        if http.path == "/metrics":
            return web.Response(text="# nothing to tell\n")
        if WAITS in http.headers:
            self.waiting += 1
            await self.reading.wait()
        body = await http.read()
        if EDITION not in http.headers:
            return web.Response(text=digest(body))
        edition = self.editions[http.headers[EDITION]]
        response = web.StreamResponse(headers=edition.headers)
        await response.prepare(http)
        for piece in edition.pieces:
            await response.write(piece)
            self.written += len(piece)
            self._at = asyncio.get_running_loop().time()
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    def stalled(self, seconds: float) -> bool:
        """Whether the gateway has begun to take editions, and takes no more."""
        return self.written > 0 and asyncio.get_running_loop().time() - self._at > seconds


def digest(data: bytes) -> str:
    """Name bytes."""
    return hashlib.sha256(data).hexdigest()


@contextlib.asynccontextmanager
async def printing() -> AsyncIterator[Press]:
    """Run one in this process, on a socket of its own."""
    press = Press()
    async with serving(press.answer, most_bytes=MAX_BYTES) as press.target:
        yield press
