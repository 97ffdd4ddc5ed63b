"""Retries requests that the API server refused: one on behalf of all."""

import asyncio
import random
from collections import deque


class RetryQueue:
    """A queue for one cause of refusal: the first in it may ask again after every pause.

    So an outage costs the API server one request per pause, however many watches wait for its end,
    and all of them go on as soon as one was answered.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, pause: float) -> None:
        """Wait for one's turn, or for `release`. A pause is `pause` seconds, or up to half less."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        if self._timer is None:
            self._start_pause(pause)
        try:
            await place
        finally:
            if place in self._waiting:
                self._waiting.remove(place)

    def release(self) -> None:
        """Let all that wait ask again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._admit_first()

    def _start_pause(self, pause: float) -> None:
        # The chance spreads the requests of many replicas.
        seconds = pause * random.uniform(0.5, 1)  # noqa: S311 (chance, not secrets)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._end_pause, pause)

    def _end_pause(self, pause: float) -> None:
        self._timer = None
        if self._waiting:
            self._admit_first()
        if self._waiting:
            self._start_pause(pause)

    def _admit_first(self) -> None:
        place = self._waiting.popleft()
        if not place.done():
            place.set_result(None)
