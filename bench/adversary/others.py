"""A server that the picker asks: what it answers is the attacker's to say, request by request."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Self

Answer = Callable[[bytes, bytes], Iterator[bytes] | None]
"""Given a request's head and body, the bytes of its response; None: it never comes."""

READER = "reader"
"""The one bearer who has rights."""
_LENGTH = b"content-length:"


_PIECE = 1 << 20
"""What is written at once: a long body is not copied for each who asks and does not read."""


def answer(body: bytes, status: bytes = b"200 OK", *more: bytes) -> Iterator[bytes]:
    """A response as it should be."""
    head = (b"HTTP/1.1 " + status, b"content-type: application/json")
    length = b"content-length: %d" % len(body)
    yield b"\r\n".join((*head, length, *more, b"", body[:_PIECE]))
    for start in range(_PIECE, len(body), _PIECE):
        yield body[start : start + _PIECE]


def usual(head: bytes, body: bytes) -> Iterator[bytes]:
    """What an honest server says: an API server of tokens and rights, a render server of a chat."""
    if b"tokenreviews" in head:
        valid = json.loads(body)["spec"]["token"] == READER
        return _status(authenticated=valid, user={"username": READER})
    if b"accessreviews" in head:
        return _status(allowed=json.loads(body)["spec"]["user"] == READER)
    return answer(b'{"token_ids":[1]}')


def _status(**fields: object) -> Iterator[bytes]:
    return answer(json.dumps({"status": fields}).encode())


class Others:
    """The server; `says` may be set at any time. An async context manager."""

    def __init__(self) -> None:
        self.port = self.asked = self.sent = 0
        self.says: Answer = usual
        self.pause = 0.0
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                lengths = [int(each[len(_LENGTH) :]) for each in lines if each.startswith(_LENGTH)]
                body = await reader.readexactly(sum(lengths))
                self.asked += 1
                pieces = self.says(head, body)
                if pieces is None:
                    await reader.read()
                    break
                for piece in pieces:
                    writer.write(piece)
                    self.sent += len(piece)
                    await writer.drain()
                    await asyncio.sleep(self.pause)
        writer.close()
