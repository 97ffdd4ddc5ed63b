"""Writes a call's output as server-sent events while it comes."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from aiohttp import web

from model_server.simulator.engine import Call, Piece
from model_server.simulator.faults import hang_up
from model_server.simulator.scheduler import Finish

DONE = b"data: [DONE]\n\n"


class Form(Protocol):
    """How one API words its events."""

    def opening(self) -> bytes:
        """Word what precedes the first token."""

    def piece(self, piece: Piece) -> bytes:
        """One piece of output."""

    def closing(self) -> bytes:
        """Word what follows the last token."""


def event(value: object) -> bytes:
    """One server-sent event with a JSON body."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def finish_name(finish: Finish | None) -> str | None:
    """`finish_reason`."""
    return None if finish is None else finish.value


async def stream(
    http: web.Request, call: Call, form: Form, dies_after: int | None = None
) -> web.StreamResponse:
    """Answer with events. The headers leave at once, before the first token exists.

    `dies_after` closes the connection after that many pieces of output.
    """
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    left = dies_after
    await response.prepare(http)
    opened = False
    async for batch in call.batches():
        opening = b"" if opened else form.opening()
        opened = True
        await response.write(b"".join([opening, *map(form.piece, batch[:left])]))
        if left is not None:
            left -= len(batch)
            if left <= 0:
                await hang_up(http)
    await response.write(form.closing())
    await response.write_eof()
    return response


async def collect(call: Call) -> tuple[Sequence[str], Sequence[Finish | None]]:
    """Wait for the whole text and the finish reason of each prompt."""
    texts: list[list[str]] = [[] for _ in call.requests]
    async for batch in call.batches():
        for piece in batch:
            texts[piece.prompt].append(piece.text)
    return ["".join(parts) for parts in texts], [request.finish for request in call.requests]
