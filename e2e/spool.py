"""A model server whose streams are told apart, in bursts or as far as the client has read."""

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from e2e.serving import serving

NUMBER = "x-spool-number"
STEP = "x-spool-step"
HOLD = "x-spool-hold"
DONE = b"data: [DONE]\n\n"


def pieces_of(number: int) -> Sequence[bytes]:
    """Make the pieces of one stream: SSE events of a few bytes to some kilobytes, usage last."""
    draw = random.Random(number)
    events = [
        b'data: {"stream":%d,"piece":%d,"text":"%s"}\n\n'
        % (number, piece, draw.randbytes(draw.choice((2, 8, 40, 700))).hex().encode())
        for piece in range(draw.randint(2, 41))
    ]
    usage = b'data: {"usage":{"prompt_tokens":9,"completion_tokens":%d}}\n\n' % len(events)
    return [*events, usage + DONE]


def digest_of(number: int) -> bytes:
    """Name what a stream must come to."""
    return hashlib.sha256(b"".join(pieces_of(number))).digest()


class Spool:
    """Answers with the stream that a request numbers.

    With `x-spool-step` each piece after the first waits until `taken` is told of the one before.
    With `x-spool-hold` all come at once but the last, which waits until `taken` is told of any.
    """

    def __init__(self) -> None:
        self.target = ""
        self._taken: dict[int, asyncio.Semaphore] = {}

    def taken(self, number: int) -> None:
        """Hear that the client has got another piece of a stream."""
        self._taken[number].release()

    async def answer(self, http: web.Request) -> web.StreamResponse:
        """Send a stream."""
        if http.path == "/metrics":
            return web.Response(text="# nothing to tell\n")
        await http.read()
        number = int(http.headers[NUMBER])
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(http)
        if STEP in http.headers:
            await self._step(response, number)
        elif HOLD in http.headers:
            await self._hold(response, number)
        else:
            await _burst(response, pieces_of(number))
        await response.write_eof()
        return response

    async def _hold(self, response: web.StreamResponse, number: int) -> None:
        taken = self._taken[number] = asyncio.Semaphore(0)
        *most, last = pieces_of(number)
        await _burst(response, most)
        await taken.acquire()
        await response.write(last)
        del self._taken[number]

    async def _step(self, response: web.StreamResponse, number: int) -> None:
        taken = self._taken[number] = asyncio.Semaphore(1)
        for piece in pieces_of(number):
            await taken.acquire()
            await response.write(piece)
        await taken.acquire()
        del self._taken[number]


async def _burst(response: web.StreamResponse, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0)  # other streams' pieces come between


@contextlib.asynccontextmanager
async def spooling() -> AsyncIterator[Spool]:
    """Run one in this process, on a socket of its own."""
    spool = Spool()
    async with serving(spool.answer) as spool.target:
        yield spool
