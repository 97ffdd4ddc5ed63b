"""Calls that may block: on a name server, or on a file system that is away."""

import asyncio
import contextlib
from _thread import start_new_thread
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


async def in_daemon_thread(function: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
    """Run a function in a thread of its own, and return its result.

    Unlike one of `asyncio.to_thread` it holds neither the end of the loop nor of the process.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = function(*arguments, **more)
        except Exception as error:  # noqa: BLE001 (it is raised where it is awaited)
            deliver(outcome.set_exception, error)
        else:
            deliver(outcome.set_result, result)

    def deliver(settle: Callable[[V], None], value: V) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(lambda: None if outcome.done() else settle(value))

    # `threading.Thread` waits until its thread runs, which costs as much as all the rest.
    start_new_thread(run, ())
    return await outcome
