"""Whom an exchange asks for a decision, and tells what became of it."""

from enum import Enum
from typing import Protocol

from epp.model.events import Event
from epp.model.request import Decision, InferenceRequest
from epp.protocol.extproc.record import RequestRecord


class Pending(Enum):
    """The answer of a director that has not decided yet; it will `resume` the exchange."""

    PENDING = "pending"


class Director(Protocol):
    """Whom an exchange asks and tells."""

    def route(self, request: InferenceRequest, now: float) -> Decision | Pending:
        """Choose endpoints for a request, and count it as admitted. May raise `RequestError`."""

    def observe(self, event: Event, now: float) -> None:
        """Learn what became of an admitted request."""

    def close(self, record: RequestRecord) -> None:
        """Take note of an exchange that is over; called once."""
