"""Ways for the API server, or what lies before it, to misbehave. Each is something that happens."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tests.kubeapi import status
from tests.kubeapi.answers import Answer
from tests.kubeapi.request import Ask
from tests.kubeapi.status import ApiError, PlainTextError

Effect = Callable[[Ask], Awaitable[Answer | None]]


class Dropped(Exception):
    """The connection goes down without an answer."""


class Fault(msgspec.Struct):
    """An effect on the requests that match, for `times` of them (None: for good).

    `verb` and `resource` "" match all; verbs are RBAC's: get, list, watch, create...
    """

    effect: Effect
    verb: str = ""
    resource: str = ""
    times: int | None = 1

    def takes(self, ask: Ask) -> bool:
        """Whether it falls on this request; counts it."""
        if self.times == 0 or self.verb not in ("", ask.verb):
            return False
        if self.resource not in ("", ask.resource):
            return False
        if self.times is not None:
            self.times -= 1
        return True


def _raises(make: Callable[[], Exception]) -> Effect:
    async def effect(_: Ask) -> Answer | None:
        raise make()

    return effect


def too_many(retry_after: int = 1) -> Effect:
    """429 with Retry-After in seconds, as priority and fairness refuses."""
    return _raises(lambda: status.too_many_requests(retry_after))


def internal(message: str = "etcdserver: request timed out") -> Effect:
    """500."""
    return _raises(lambda: status.internal(message))


def unavailable() -> Effect:
    """503 as the API server says it while it starts."""
    return _raises(status.unavailable)


def bad_gateway() -> Effect:
    """502 as a load balancer says it: HTML, no Status."""
    return _raises(lambda: PlainTextError(502, "<html>502 Bad Gateway</html>\n"))


def gone() -> Effect:
    """410 as the answer itself, not as an event in a watch."""
    return _raises(lambda: status.expired("too old resource version: 1 (2)"))


def failing(error: ApiError | PlainTextError) -> Effect:
    """Any other error."""
    return _raises(lambda: error)


def dropped() -> Effect:
    """The connection is reset instead of an answer."""
    return _raises(Dropped)


def hanging() -> Effect:
    """No answer, ever; the connection stays open."""

    async def effect(_: Ask) -> Answer | None:
        await asyncio.Event().wait()
        return None

    return effect


def held_until(event: asyncio.Event) -> Effect:
    """The request is served once `event` is set."""

    async def effect(_: Ask) -> Answer | None:
        await event.wait()
        return None

    return effect


def answering(answer: Answer) -> Effect:
    """These bytes instead of an answer."""

    async def effect(_: Ask) -> Any:
        return answer

    return effect
