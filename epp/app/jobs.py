"""Jobs that last as long as the process: one that fails is logged and started again."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from epp.errors import AWAITED_FAULTS
from epp.system.logs import Log

_log = Log(__name__)

_PAUSES = 0.1, 30.0
"""Seconds before a failed job is started again: at first, and at most. They double each time."""
_LASTED_SECONDS = 60.0
"""After a run of this length the pause is the first one again."""
_FRAMES, _CHARACTERS = 5, 500
"""What is logged of an error: its innermost frames, and the characters of its text."""


def log_failure(name: str, error: BaseException | None, wait: float) -> None:
    """Log that a job will be started again after `wait` seconds; `error` is None if it returned."""
    fields = {"error": "it has ended"} if error is None else error_fields(error)
    _log.error("job.failed", job=name, again_in=wait, **fields)


async def keep_running(
    name: str,
    job: Callable[[], Awaitable[None]],
    failed: Callable[[str, BaseException | None, float], None] = log_failure,
    pauses: tuple[float, float] = _PAUSES,
) -> NoReturn:
    """Run a job until cancelled; start it again, after a pause, when it ends.

    A job may fail on what others send; the process then goes on serving with what it knows.
    `failed` is called each time, like `log_failure`; an exception that it raises ends this too.
    """
    await keep_running_until(asyncio.Event(), name, job, failed, pauses)
    raise AssertionError("the event is never set")


async def keep_running_until(
    stopping: asyncio.Event,
    name: str,
    job: Callable[[], Awaitable[None]],
    failed: Callable[[str, BaseException | None, float], None],
    pauses: tuple[float, float],
) -> None:
    """Like `keep_running`, but return once the job has ended and `stopping` is set."""
    loop = asyncio.get_running_loop()
    wait, longest = pauses
    while not stopping.is_set():
        began, fault = loop.time(), None
        try:
            await job()
        except AWAITED_FAULTS as error:
            fault = error
        if stopping.is_set():
            return
        if loop.time() - began >= _LASTED_SECONDS:
            wait = pauses[0]
        failed(name, fault, wait)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await stopping.wait()
        wait = min(2 * wait, longest)


async def attempt(what: str, step: Awaitable[object]) -> None:
    """Await a step of a shutdown; log its failure, so that the next steps are taken too."""
    try:
        await step
    except AWAITED_FAULTS as error:
        _log.error("shutdown.failed", step=what, **error_fields(error))


def first_error(error: BaseException) -> BaseException:
    """Return the first error of a group, or of a group in it; any other error as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def error_fields(error: BaseException) -> dict[str, str]:
    """Return an error's type and text, and where it was raised, for one line of a log."""
    error = first_error(error)
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return {
        "error": f"{type(error).__name__}: {error}"[:_CHARACTERS],
        "at": " > ".join(
            f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in frames
        ),
    }
