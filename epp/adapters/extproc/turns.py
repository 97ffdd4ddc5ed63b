"""Turns on the event loop, for connections that bring more work than one read should be."""

import asyncio
import time
from collections import deque
from typing import Final, Protocol

FULL_READ_BYTES: Final = 250_000
"""What fills uvloop's buffer (`UV_STREAM_RECV_BUF_SIZE`, 256,000 bytes).

libuv `uv__read` reads on after it, up to 32 times, before any other socket is looked at.
"""
_MOST_READS: Final = 32
"""At one look at the sockets: more wait for turns. A read is some 0.1 ms of work."""
_SLICE_SECONDS: Final = 0.005
"""How long turns are taken between two looks at the sockets and timers, in seconds."""


class TurnTaker(Protocol):
    """What waits for turns. Nothing is raised by it."""

    def take_turn(self) -> bool:
        """Do a part of what waits, of about a millisecond; return whether more is left."""


class Turns:
    """Shares the loop among those that have more than one turn's work.

    While any of them waits, `crowded` is true, and what arrives anywhere is to wait for a turn
    too: the loop hands over all that its sockets have at once, however much that is. Those with
    little alternate with those with more, so no stream's little waits behind the much of many.

    `look` counts looks at the sockets, each of which reads a connection once: who is read again
    begins another.
    """

    def __init__(self) -> None:
        self.crowded = False
        self.look = 1
        self._reads = 0
        self._arrived: deque[TurnTaker] = deque()
        self._left_over: deque[TurnTaker] = deque()

    def crowd(self, last: int) -> bool:
        """Count a read by one whose last was at this `look`; say whether it has to wait for a turn.

        It has to while others wait, and if the loop has handed over many reads at once.
        """
        if last == self.look:
            self._look_again()
        self._reads += 1
        return self.crowded or self._reads > _MOST_READS

    def _look_again(self) -> None:
        self.look += 1
        self._reads = 0

    def arrive(self, taker: TurnTaker) -> None:
        """Give turns to someone who has little, until nothing is left."""
        self._wait(taker, self._arrived)

    def go_on(self, taker: TurnTaker) -> None:
        """Give turns to someone who has had one and has more, who has much, or who is new.

        So those who are there do not wait behind however many come.
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
