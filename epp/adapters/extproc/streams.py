"""The open streams of a server: how many, what they hold of unfinished requests, and for how long.

A stream's request is unfinished until a decision is made on it. What all streams hold has one
bound, so that no number of them exhausts the memory.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from epp.adapters.extproc.limits import LineQuota
from epp.adapters.extproc.memory import resident_bytes, trim_freed_memory
from epp.errors import Overloaded, RequestError, RequestTimeout

_log = structlog.get_logger()

_SWEEP_SECONDS: Final = 1.0
_ROOM: Final = 0.9
"""The share of the bound that may be held after it was exceeded."""
_TRIM_BYTES: Final = 64 << 20
_TRIM_SECONDS: Final = 5.0
"""A growth of the process after which freed memory goes back to the system, and how often."""


class OpenStream(Protocol):
    """A stream with its exchange (`epp.adapters.extproc.driver.ExchangeDriver`)."""

    @property
    def received_at(self) -> float:
        """When it was opened, in seconds of the monotonic clock."""

    @property
    def awaits_request(self) -> bool:
        """Whether it is for the peer to send more of the request before a decision."""

    def refuse(self, error: RequestError) -> None:
        """Answer its client with an error, and end it."""


class OpenStreams:
    """Counts streams, and refuses those whose requests take too much memory or time.

    While the streams hold more than `max_held_bytes`, those that hold most are refused. A request
    that has not ended `request_timeout` seconds after its stream was opened is refused; 0: it may
    take for ever. `faults` is the quota of log lines about exchanges that raise, by the type of the
    error. `clock` returns seconds of the monotonic clock.
    """

    def __init__(
        self, clock: Callable[[], float], *, max_held_bytes: int, request_timeout: float
    ) -> None:
        self.open = 0
        self.held_bytes = 0
        self.faults = LineQuota()
        self._clock = clock
        self._most = max_held_bytes
        self._timeout = request_timeout or math.inf
        self._unfinished: dict[OpenStream, None] = {}  # oldest first; some are finished
        self._holding: dict[OpenStream, int] = {}
        self._refused = 0
        self._kept = self._unheld_bytes()  # when memory went back last
        self._trimmed_at = clock()
        self._sweeping = False
        self._last_end = clock()
        self._none_open = asyncio.Event()
        self._none_open.set()

    def opened(self, stream: OpenStream) -> None:
        """Count one more."""
        if not self.open:
            self._none_open.clear()
        self.open += 1
        self._unfinished[stream] = None
        if not self._sweeping:
            self._sweep_later()

    def closed(self, stream: OpenStream, now: float) -> None:
        """Count one less; it holds nothing any more."""
        self.open -= 1
        self._last_end = now
        self._unfinished.pop(stream, None)
        if stream in self._holding:
            self.hold(stream, 0)
        if not self.open:
            self._none_open.set()

    def hold(self, stream: OpenStream, size: int) -> None:
        """Record that a stream holds `size` bytes of its request; others, or it, may be refused."""
        more = size - self._holding.pop(stream, 0)
        if size:
            self._holding[stream] = size
        self.held_bytes += more
        if more > 0 and self.held_bytes > self._most:
            self._make_room()

    def _make_room(self) -> None:
        """Refuse what holds most until there is room; requests that were decided on come last."""
        largest = sorted(
            self._holding, key=lambda each: (each.awaits_request, self._holding[each]), reverse=True
        )
        message = (
            f"unfinished requests hold more than {self._most} bytes; this is among the largest"
        )
        for stream in largest:
            if self.held_bytes <= self._most * _ROOM:
                break
            self._refused += 1
            stream.refuse(Overloaded(message, reason="held-bytes", retry_after=1))

    def _sweep_later(self) -> None:
        self._sweeping = True
        asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Refuse what is overdue; look again as long as there are streams."""
        overdue = self._clock() - self._timeout
        while self._unfinished:
            stream = next(iter(self._unfinished))
            if stream.received_at > overdue:
                break
            del self._unfinished[stream]
            if stream.awaits_request:
                message = f"the request did not end within {self._timeout:g} seconds"
                stream.refuse(RequestTimeout(message))
        if self._refused:
            _log.warning("requests.refused", reason="held-bytes", count=self._refused)
            self._refused = 0
        self._sweeping = False
        if self._has_grown() or self._unfinished or self._holding:
            self._sweep_later()

    def _has_grown(self) -> bool:
        """Whether memory may be to give back; give it back unless that was done a moment ago."""
        if self._unheld_bytes() < self._kept + _TRIM_BYTES:
            return False
        now = self._clock()
        if now - self._trimmed_at >= _TRIM_SECONDS:
            self._trimmed_at = now
            trimming = asyncio.get_running_loop().run_in_executor(None, trim_freed_memory)
            trimming.add_done_callback(self._trimmed)
        return True

    def _trimmed(self, _: object) -> None:
        self._kept = self._unheld_bytes()

    def _unheld_bytes(self) -> int:
        """Return the memory of the process without that of requests, which is freed with them."""
        return resident_bytes() - self.held_bytes

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream is open, and none has been for `seconds`."""
        while True:
            await self._none_open.wait()
            left = self._last_end + seconds - self._clock()
            if left <= 0:
                return
            await asyncio.sleep(left)
