"""Turns on the event loop that the readers of all KV event sockets share."""

import asyncio
import time
from collections.abc import Callable

_TURN_SECONDS = 0.002
"""How long messages are received and handled before the loop may run other tasks."""


class Turns:
    """Gives the loop's iterations one turn each, however many readers wait for one.

    Readers that find the turn over are served in the order in which they ask. A turn may exceed its
    seconds by what one reader does between two calls.
    """

    def __init__(
        self, seconds: float = _TURN_SECONDS, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._now = now  # not the loop's own time, which uvloop reads once per iteration
        self._end = now()
        self._line = asyncio.Lock()

    @property
    def over(self) -> bool:
        """Whether the present turn is: who has more to do then awaits `take`."""
        return self._now() >= self._end

    async def take(self) -> None:
        """Wait for a turn, unless there is time left in the present one."""
        if not self.over:
            return
        async with self._line:
            if self.over:
                await asyncio.sleep(0)
                self._end = self._now() + self._seconds
