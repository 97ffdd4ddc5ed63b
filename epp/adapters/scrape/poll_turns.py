"""How many polls begin in one turn of the event loop, however many endpoints there are."""

import asyncio
from collections import deque

_AT_ONCE = 64
"""Some 10 ms of work, if all of them are refused."""


class PollTurns:
    """Lets `at_once` polls begin in each turn of the loop, in the order in which they ask."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._at_once = at_once
        self._begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._counting = False

    def take(self) -> asyncio.Future[None] | None:
        """Return what to wait for before a poll; None if few have asked in this turn."""
        loop = asyncio.get_running_loop()
        if not self._counting:
            self._counting = True
            loop.call_soon(self._next)
        if self._begun < self._at_once:
            self._begun += 1
            return None
        place = loop.create_future()
        self._waiting.append(place)
        return place

    def _next(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < self._at_once:
            place = self._waiting.popleft()
            if not place.done():  # its endpoint is still there
                self._begun += 1
                place.set_result(None)
        self._counting = self._begun > 0
        if self._counting:
            asyncio.get_running_loop().call_soon(self._next)
