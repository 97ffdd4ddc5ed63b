"""A slow result that several readers share."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedResult(Generic[T]):
    """The result of `make`, which readers share while it is made, and until it is `seconds` old.

    A reader that goes away does not stop it for others. `clock` returns seconds.
    """

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, T]],
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._make = make
        self._seconds = seconds
        self._clock = clock
        self._task: asyncio.Task[T] | None = None
        self._began = 0.0

    async def get(self) -> T:
        """Return the result, or raise what making it has raised."""
        now, task = self._clock(), self._task
        if task is None or (task.done() and now - self._began >= self._seconds):
            task = self._task = asyncio.create_task(self._make())
            self._began = now
        return await asyncio.shield(task)
