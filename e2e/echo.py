"""A model server that says what it was sent, byte for byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from e2e.serving import serving

MAX_BYTES = 64 << 20
HELD = "x-echo-hold"
PIECES = "x-echo-pieces"


class Seen(msgspec.Struct, frozen=True):
    """A request as it arrived; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Echo:
    """Answers every request with its own body, and remembers it.

    With the header `x-echo-pieces: N` the answer is a stream of N events (`event(n)`). With
    `x-echo-hold` no more than the first of them is sent before `release` is set, and nothing of an
    answer that is not a stream.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.release = asyncio.Event()
        self.target = ""

    async def answer(self, http: web.Request) -> web.StreamResponse:
        """Remember a request and answer it."""
        if http.path == "/metrics":
            return web.Response(text="# nothing to tell\n")
        headers = {name.lower(): value for name, value in http.headers.items()}
        self.seen.append(Seen(http.method, http.path_qs, headers, await http.read()))
        pieces = int(headers.get(PIECES, 0))
        if pieces:
            return await self._stream(http, pieces)
        if HELD in headers:
            await self.release.wait()
        kind = headers.get("content-type", "text/plain")
        return web.Response(
            body=self.seen[-1].body, headers={"content-type": kind, "x-echo": self.target}
        )

    async def _stream(self, http: web.Request, pieces: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(http)
        for number in range(pieces):
            await response.write(event(number))
            if HELD in http.headers:
                await self.release.wait()
        await response.write_eof()
        return response


def event(number: int) -> bytes:
    """Give one event of a stream."""
    return b'data: {"number": %d, "text": "%s"}\n\n' % (number, b"x" * (number % 700))


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[Echo]:
    """Run an echo in this process, on a socket of its own."""
    echo = Echo()
    async with serving(echo.answer, most_bytes=MAX_BYTES) as echo.target:
        yield echo
