"""The open streams of a server: their number, and the bytes and age of unfinished requests.

A stream's request is unfinished until a decision is made on it. The bytes of all streams together
are bounded, so that no number of streams exhausts the memory.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol

from epp.errors import Overloaded, RequestError, RequestTimeout
from epp.system.line_quota import LineQuota
from epp.system.logs import Log

_log = Log(__name__)

_SWEEP_SECONDS: Final = 1.0
_ROOM: Final = 0.9
"""The share of the bound that may be held after it was exceeded."""


class OpenStream(Protocol):
    """A stream with its exchange (`epp.adapters.extproc.driver.ExchangeDriver`)."""

    @property
    def received_at(self) -> float:
        """When it was opened, in seconds of the monotonic clock."""

    @property
    def awaits_request(self) -> bool:
        """Whether the peer must send more of the request before a decision."""

    def refuse(self, error: RequestError) -> None:
        """Answer its client with an error, and end it."""


class OpenStreams:
    """Counts streams, and refuses those whose requests take too much memory or time.

    While the streams hold more than `max_held_bytes`, those that hold most are refused. A request
    that has not ended `request_timeout` seconds after its stream was opened is refused; 0: never.
    `faults` is the quota of log lines about exchanges that raise, by the type of the error. `clock`
    returns seconds of the monotonic clock.
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
        self._sweeping = False
        self._last_end = clock()
        self._none_open = asyncio.Event()
        self._none_open.set()

    def opened(self, stream: OpenStream) -> None:
        """Count a stream that was opened."""
        if not self.open:
            self._none_open.clear()
        self.open += 1
        self._unfinished[stream] = None
        if not self._sweeping:
            self._sweep_later()

    def closed(self, stream: OpenStream, now: float) -> None:
        """Stop counting a stream; it no longer holds anything."""
        self.open -= 1
        self._last_end = now
        self._unfinished.pop(stream, None)
        if stream in self._holding:
            self.record_held(stream, 0)
        if not self.open:
            self._none_open.set()

    def record_held(self, stream: OpenStream, size: int) -> None:
        """Record that a stream holds `size` bytes of its request; others, or it, may be refused."""
        more = size - self._holding.pop(stream, 0)
        if size:
            self._holding[stream] = size
        self.held_bytes += more
        if more > 0 and self.held_bytes > self._most:
            self._make_room()

    def _make_room(self) -> None:
        """Refuse the largest requests until there is room; decided ones are refused last."""
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
        """Refuse overdue requests; check again as long as there are streams."""
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
        if self._unfinished or self._holding:
            self._sweep_later()

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream was open for `seconds`."""
        while True:
            await self._none_open.wait()
            left = self._last_end + seconds - self._clock()
            if left <= 0:
                return
            await asyncio.sleep(left)
