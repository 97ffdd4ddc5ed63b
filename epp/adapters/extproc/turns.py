"""Turns on the event loop, for connections with more work than one read should take."""

import asyncio
import time
from collections import deque
from typing import Final, Protocol

FULL_READ_BYTES: Final = 250_000
"""The size of uvloop's buffer (`UV_STREAM_RECV_BUF_SIZE`, 256,000 bytes).

If it is full, libuv `uv__read` reads again, up to 32 times, before it polls any other socket.
"""
_MAX_READS: Final = 32
"""The most reads at one look at the sockets; more wait for turns. A read takes some 0.1 ms."""
_SLICE_SECONDS: Final = 0.005
"""Seconds for which turns are taken between two looks at the sockets and timers."""


class TurnTaker(Protocol):
    """A connection that waits for turns. It raises nothing."""

    def take_turn(self) -> bool:
        """Do about a millisecond of the waiting work; return whether more is left."""


class Turns:
    """Shares the loop among connections that have more than one turn's work.

    While any of them waits, `crowded` is true, and all other reads must wait for a turn too, since
    the loop delivers everything that its sockets have at once. Small reads alternate with large
    ones, so that no small one waits behind many large ones.

    `look` counts polls of the sockets. Each reads a connection at most once, so a second read of
    the same connection begins another one. `ahead` counts bytes that connections have received and
    not handled (`read_ahead.py`).
    """

    def __init__(self) -> None:
        self.crowded = False
        self.ahead = 0
        self.look = 1
        self._reads = 0
        self._arrived: deque[TurnTaker] = deque()
        self._left_over: deque[TurnTaker] = deque()

    def crowd(self, last: int) -> bool:
        """Count a read of a connection that was `last` read at a look; return whether it must wait.

        It must wait while others do, and if the loop has delivered many reads at once.
        """
        if last == self.look:
            self._look_again()
        self._reads += 1
        return self.crowded or self._reads > _MAX_READS

    def _look_again(self) -> None:
        self.look += 1
        self._reads = 0

    def arrive(self, taker: TurnTaker) -> None:
        """Give turns to a connection with little work, until none is left."""
        self._wait(taker, self._arrived)

    def go_on(self, taker: TurnTaker) -> None:
        """Give turns to a connection that has more work after a turn, has much work, or is new.

        So the connections that are here do not wait behind any number of new ones.
        """
        self._wait(taker, self._left_over)

    def _wait(self, taker: TurnTaker, queue: deque[TurnTaker]) -> None:
        queue.append(taker)
        if not self.crowded:
            self.crowded = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        until = time.monotonic() + _SLICE_SECONDS
        while self._arrived or self._left_over:
            for queue in (self._arrived, self._left_over):
                if queue:
                    taker = queue.popleft()
                    if taker.take_turn():
                        self._left_over.append(taker)
            if time.monotonic() >= until:
                asyncio.get_running_loop().call_soon(self._run)
                return
        self.crowded = False
        self._look_again()
