"""EventTurns on the event loop that the readers of all KV event sockets share."""

import asyncio
import time
from collections.abc import Callable

_TURN_SECONDS = 0.002
"""How long messages are received and handled before the loop may run other tasks."""
_LONGEST_PAUSE = 0.05


class EventTurns:
    """Gives each iteration of the loop one turn, however many readers wait for one.

    Readers that find the turn over are served in the order in which they ask. A turn may exceed its
    seconds, of the thread's CPU time, by what one reader does between two calls; as long a pause
    follows it.
    """

    def __init__(
        self, seconds: float = _TURN_SECONDS, now: Callable[[], float] = time.thread_time
    ) -> None:
        self._seconds = seconds
        self._now = now  # of this thread: what the machine does meanwhile costs no turn
        self._end = now()
        self._excess = 0.0
        self._line = asyncio.Lock()

    def done(self) -> None:
        """Say that a reader has done what it was given the turn for."""
        self._excess = max(self._excess, self._now() - self._end)

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
                await asyncio.sleep(min(_LONGEST_PAUSE, self._excess))
                self._excess = 0.0
                self._end = self._now() + self._seconds
