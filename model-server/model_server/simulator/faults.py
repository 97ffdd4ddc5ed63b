"""Faults on demand, to test proxies and pickers in front: the header `x-sim-fault`.

refuse              close the connection without an answer
hang                never answer
status=500          answer with that status
slow-headers=0.5    wait that many seconds before anything is sent
die-after=3         close the connection after that many streamed chunks
"""

import asyncio
from dataclasses import dataclass

from aiohttp import web

from model_server.simulator.errors import ApiError, error_body

HEADER = "x-sim-fault"
_DRAIN_SECONDS = 1.0


class Gone(Exception):
    """The connection was closed on purpose."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault for one request; `chunks` None: it does not die in mid-stream."""

    kind: str = ""
    value: float = 0.0

    @property
    def chunks(self) -> int | None:
        """How many chunks to stream before the end."""
        return int(self.value) if self.kind == "die-after" else None


_NONE = Fault()
_PLAIN = ("refuse", "hang")
_VALUED = ("status", "slow-headers", "die-after")


def fault_of(http: web.Request) -> Fault:
    """Read which fault the request asks for. Raises ApiError for one that does not exist."""
    text = http.headers.get(HEADER)
    if text is None:
        return _NONE
    kind, _, value = text.partition("=")
    if kind in _PLAIN and not value:
        return Fault(kind)
    if kind in _VALUED and value.replace(".", "", 1).isdigit():
        return Fault(kind, float(value))
    raise ApiError(f"unknown {HEADER}: {text}", HEADER)


async def before_answer(http: web.Request, fault: Fault) -> web.Response | None:
    """Act on faults that come before the answer; a response replaces the real one."""
    match fault.kind:
        case "refuse":
            await hang_up(http)
        case "hang":
            await asyncio.get_running_loop().create_future()
        case "status":
            status = int(fault.value)
            body = error_body("asked for by the client", "SimulatedFault", status)
            return web.Response(status=status, body=body, content_type="application/json")
        case "slow-headers":
            await asyncio.sleep(fault.value)
        case _:
            pass
    return None


async def hang_up(http: web.Request) -> None:
    """Close the connection after what was written has left. Always raises Gone."""
    transport = http.transport
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _DRAIN_SECONDS
    if transport is not None:
        await asyncio.sleep(0)
        # ASYNC110: a transport tells nobody when its buffer is empty.
        while transport.get_write_buffer_size() and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        transport.abort()
    raise Gone
