"""The recording of requests as an observer of them."""

import asyncio
from collections.abc import Iterator
from typing import Final

from epp.adapters.recording.recorder import Recorder
from epp.adapters.telemetry.series import FamilyText, counter, expose
from epp.app.observers import Observer
from epp.model.endpoint import ROLE_LABEL
from epp.model.fleet import Fleet
from epp.protocol.recording import RecordedEndpoint

RECORDED: Final = counter(
    "warmpick_recorded_requests_total",
    "Requests that were recorded, by what became of their records.",
    "outcome",
)
RECORDED_BYTES: Final = counter(
    "warmpick_recorded_bytes_total", "Bytes of recordings that were written."
)
_LOOK_SECONDS: Final = 5.0
"""How often the endpoints are recorded."""


def recording(recorder: Recorder, fleet: Fleet) -> Observer:
    """Return the observer that records the requests of a fleet."""

    async def run() -> None:
        while True:
            recorder.saw(_endpoints(fleet))
            await asyncio.sleep(_LOOK_SECONDS)

    def collect() -> Iterator[FamilyText]:
        counts = [((outcome,), times) for outcome, times in recorder.counts]
        yield from expose(RECORDED, counts)
        yield from expose(RECORDED_BYTES, [((), recorder.bytes)])

    async def stop() -> None:
        recorder.saw(_endpoints(fleet))
        await asyncio.to_thread(recorder.stop)

    return Observer(
        name="recording",
        quoted=recorder.quoted,
        ended=recorder.ended,
        start=recorder.start,
        run=run,
        collect=collect,
        stop=stop,
    )


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
