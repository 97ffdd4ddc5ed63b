"""An event loop without sockets, threads or waiting: its time passes when it is told to.

`epp serve` runs on it unchanged. What listens is kept by its port; each connection that is opened
leads to a canned metrics page in memory.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any, cast

_PAGE_SECONDS = 0.002
"""How long a page takes to come."""

Protocols = Callable[[], asyncio.BaseProtocol]


class Clock:
    """The time, in seconds. It passes as it is told to."""

    def __init__(self, now: float) -> None:
        self.now = now


class VirtualTransport(asyncio.Transport):
    """One end of a connection in memory. `sent` counts what was written to it."""

    def __init__(self, written: Callable[[bytes], None] | None = None) -> None:
        super().__init__()
        self._written = written
        self._closing = False
        self.sent = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Count what is sent, and pass it on."""
        self.sent += len(data)
        if self._written is not None:
            self._written(bytes(data))

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return a socket that takes every option, and nothing else."""
        return self if name == "socket" else default

    def setsockopt(self, *_: object) -> None:
        """Ignore an option of a socket."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore limits: all that is written is read at once."""

    def pause_reading(self) -> None:
        """Ignore it: the player decides when something is read."""

    def resume_reading(self) -> None:
        """Ignore it, as above."""

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self._closing

    def close(self) -> None:
        """Close it."""
        self._closing = True

    abort = close


class _Listening:
    """What `create_server` returns."""

    def __init__(self, port: int) -> None:
        self.sockets = (self,)
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass

    def is_serving(self) -> bool:
        return True


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs what is ready, and timers when time passes. `page` is what every server answers."""

    def __init__(self, clock: Clock, page: bytes) -> None:
        self._clock = clock
        self._page = page
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self.listening: dict[int, Protocols] = {}

    def run_ready(self) -> None:
        """Run what is ready, and what that makes ready."""
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 (what every loop does)

    def run_for(self, seconds: float) -> None:
        """Let time pass, and run what becomes due."""
        end = self._clock.now + seconds
        self.run_ready()
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heappop(self._timers)
            if not timer.cancelled():
                self._clock.now = max(self._clock.now, when)
                self._ready.append(timer)
                self.run_ready()
        self._clock.now = end

    # What `asyncio` asks of a loop.

    def time(self) -> float:
        return self._clock.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, _: asyncio.TimerHandle) -> None:
        """Leave it: it is passed over when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # no factory is ever set
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(
        self, _executor: object, function: Callable[..., object], *args: object
    ) -> asyncio.Future[Any]:
        done = self.create_future()
        done.set_result(function(*args))
        return done

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: object) -> None:
        """Ignore it: no signal comes."""

    def remove_signal_handler(self, sig: int) -> bool:
        return True

    def call_exception_handler(self, context: Mapping[str, Any]) -> None:
        raise RuntimeError(context["message"]) from context.get("exception")

    async def create_server(  # type: ignore[override]  # of what can be asked, this is
        self, protocol_factory: Protocols, host: object = None, port: int = 0, **_: object
    ) -> _Listening:
        self.listening[port] = protocol_factory
        return _Listening(port)

    async def create_connection(  # type: ignore[override]  # of what can be asked, this is
        self, protocol_factory: Protocols, host: object = None, port: object = None, **_: object
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        protocol = protocol_factory()
        transport = VirtualTransport(lambda _: self._answer(protocol))
        protocol.connection_made(transport)
        return transport, protocol

    def _answer(self, protocol: asyncio.BaseProtocol) -> None:
        self.call_later(_PAGE_SECONDS, _deliver, protocol, self._page)


def virtual_loop(clock: Clock, page: bytes) -> VirtualLoop:
    """Return a loop of which what the picker does not ask for is left out."""
    return VirtualLoop(clock, page)  # type: ignore[abstract]  # as it says


def _deliver(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Hand data to a protocol as a loop does."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        cast(asyncio.Protocol, protocol).data_received(data)
        return
    for start in _cuts(protocol, data):
        protocol.buffer_updated(start)


def _cuts(protocol: asyncio.BufferedProtocol, data: bytes) -> Iterable[int]:
    while data:
        buffer = memoryview(protocol.get_buffer(-1))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        data = data[size:]
        yield size
