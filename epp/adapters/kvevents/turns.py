"""Turns on the event loop, which the readers of all KV event sockets share."""

import asyncio
import time
from collections.abc import Callable

_TURN_SECONDS = 0.002
"""How long messages are received and handled before the loop may run other tasks."""
_LONGEST_PAUSE = 0.05


class EventTurns:
    """Gives each iteration of the loop one turn, however many readers wait for one.

    Readers that find the turn over are served in order of arrival. A turn may exceed its seconds,
    of the thread's CPU time, by what one reader does between two calls; a pause of the same length
    follows.
    """

    def __init__(
        self, seconds: float = _TURN_SECONDS, now: Callable[[], float] = time.thread_time
    ) -> None:
        self._seconds = seconds
        self._now = now  # of this thread: other work of the machine does not count
        self._end = now()
        self._excess = 0.0
        self._line = asyncio.Lock()

    def done(self) -> None:
        """Record that a reader has finished the work of its turn."""
        self._excess = max(self._excess, self._now() - self._end)

    @property
    def over(self) -> bool:
        """Whether the present turn is over: a reader with more to do then awaits `take`."""
        return self._now() >= self._end

    async def take(self) -> None:
        """Wait for a turn, unless there is time left in the present one."""
        if not self.over:
            return
        async with self._line:
            if self.over:
                await asyncio.sleep(min(_LONGEST_PAUSE, self._excess))
                self._excess = 0.0
                self._end = self._now() + self._seconds
