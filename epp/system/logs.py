"""Loggers that write to the program's own log, since this process may be a user's program."""

import logging
from collections.abc import Callable
from typing import Any

import structlog
from structlog.typing import EventDict


class Log:
    """The logger of a module: structlog's if the program has configured it, else `logging`'s.

    `epp serve` configures structlog, so the latter only happens in a user's program. There
    structlog would print to stdout, which is for the program's own output.
    """

    def __init__(self, name: str) -> None:
        self._configured = structlog.get_logger(name)
        self._standard = structlog.wrap_logger(
            logging.getLogger(name),
            processors=[structlog.stdlib.filter_by_level, _as_text],
            wrapper_class=structlog.stdlib.BoundLogger,
            cache_logger_on_first_use=False,
        )

    def __getattr__(self, method: str) -> Callable[..., Any]:
        chosen = self._configured if structlog.is_configured() else self._standard
        found: Callable[..., Any] = getattr(chosen, method)
        return found


def _as_text(_: object, __: str, fields: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """Return the arguments for a method of `logging.Logger`."""
    error = fields.pop("exc_info", None)
    event = fields.pop("event", "")
    text = " ".join((str(event), *(f"{name}={value!r}" for name, value in fields.items())))
    return (text,), {"exc_info": error}
