"""What the fleet hears of how an exchange ended."""

from typing import Final

from epp.model.events import Aborted, Event, Finished, Unobserved
from epp.model.request import Outcome
from epp.protocol.extproc.record import RequestRecord

_CLIENT_ERROR: Final = 400

# Looked up once: docs/adr/0013-compiled.md says why.
_COMPLETED: Final = Outcome.COMPLETED
_UNOBSERVED: Final = Outcome.UNOBSERVED


def refused(record: RequestRecord) -> bool:
    """Whether the model server, or who stood in for it, answered with an error."""
    return record.status is not None and record.status >= _CLIENT_ERROR


def end_of(record: RequestRecord, outcome: Outcome) -> Event:
    """Say what became of a request that was routed."""
    generated = record.response_chunks if record.streaming else 0
    if refused(record):
        return Aborted(record.id, refused=True)
    if outcome is _COMPLETED:
        return Finished(record.id, record.usage, generated)
    if outcome is _UNOBSERVED:
        return Unobserved(record.id)
    return Aborted(record.id, generated)
