"""What goes on beside the picks and changes none: recording, shadow, and news of ejections."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from epp.adapters.recording.recorder import Recorder
from epp.adapters.telemetry.series import Family, FamilyText, expose
from epp.app.ejections import Ejections
from epp.app.shadow import Shadow
from epp.model.endpoint import ROLE_LABEL
from epp.model.fleet import Fleet
from epp.policy.scheduler import OnCommit, OnQuote
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.recording import RecordedEndpoint

RECORDED: Final = Family(
    name="warmpick_recorded_requests_total",
    help="Requests that were recorded, by what became of their records.",
    kind="counter",
    labels=("outcome",),
)
RECORDED_BYTES: Final = Family(
    name="warmpick_recorded_bytes_total",
    help="Bytes of recordings that were written.",
    kind="counter",
)
_LOOK_SECONDS: Final = 5.0
"""How often it is asked which endpoints there are."""


class Companions:
    """One picker's recorder and shadow; None where there is none. Ejections are always told.

    `quoted` and `committing` are for its schedulers, `ended` for its director; None where nobody
    is to be called.
    """

    def __init__(
        self, fleet: Fleet, recorder: Recorder | None = None, shadow: Shadow | None = None
    ) -> None:
        self._fleet = fleet
        self._recorder = recorder
        self._shadow = shadow
        self._ejections = Ejections(fleet)
        self.quoted: OnQuote | None = None
        self.committing: OnCommit | None = None
        self.ended: Callable[[RequestRecord], None] | None = None
        if recorder is not None:
            self.quoted, self.ended = recorder.quoted, recorder.ended
        if shadow is not None:
            self.committing = shadow.committing

    def jobs(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Yield what is to run as long as the picker, by name; the recorder starts to write."""
        if self._recorder is not None:
            self._recorder.start()
            yield "recording", self._watch_endpoints
        if self._shadow is not None:
            yield "shadow", self._shadow.run

    async def _watch_endpoints(self) -> None:
        while self._recorder is not None:
            self._recorder.saw(_endpoints(self._fleet))
            await asyncio.sleep(_LOOK_SECONDS)

    def collect(self) -> Iterator[FamilyText]:
        """Yield the families of what there is."""
        yield from self._ejections.collect()
        if self._recorder is not None:
            counts = [((outcome,), times) for outcome, times in self._recorder.counts]
            yield from expose(RECORDED, counts)
            yield from expose(RECORDED_BYTES, [((), self._recorder.bytes)])
        if self._shadow is not None:
            yield from self._shadow.collect()

    async def stop(self) -> None:
        """Write what was recorded."""
        if self._recorder is not None:
            self._recorder.saw(_endpoints(self._fleet))
            await asyncio.to_thread(self._recorder.stop)


def _endpoints(fleet: Fleet) -> list[RecordedEndpoint]:
    return [
        RecordedEndpoint(
            id=pod.endpoint.id,
            kv_tokens=pod.cache_stats().capacity,
            block_tokens=pod.engine_block,
            role=pod.endpoint.labels.get(ROLE_LABEL, ""),
        )
        for pod in fleet.pods.values()
    ]
