"""The fleet and the last decisions as columns: a field's name once, not once per endpoint."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from epp.app.console.views import DecisionColumns
from epp.app.observing.decision_ring import EndpointTally, KeptDecision
from epp.app.observing.fleet_view import EndpointView, endpoint_view
from epp.app.observing.views import EndingView, ending_view
from epp.model.endpoint import EndpointId
from epp.model.pods.pod import Pod

_AT_ONCE: Final = 20
"""Endpoints or decisions that are looked at between two turns of the event loop."""
_MAX_CHARACTERS: Final = 120
"""The longest client's id or model's name that is shown."""
_MILLI: Final = 1e3
_RUNS: Final = EndingView()
"""The value for a request that has not ended."""

Room = Callable[[Pod, float], float | None]
"""Returns how full the fullest axis of an endpoint's room is; None if that is not known."""


async def fleet_columns(
    pods: Sequence[Pod], tallies: Mapping[EndpointId, EndpointTally], now: float, room_of: Room
) -> msgspec.Raw:
    """Return endpoints as JSON, with a column for each field of their view, and their room."""
    rows: list[Sequence[object]] = []
    for at, pod in enumerate(pods):
        view = endpoint_view(pod, tallies, now)
        room = room_of(pod, now)
        rounded = None if room is None else round(room, 3)
        rows.append((*msgspec.structs.astuple(view), rounded))
        if at % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    names = (*EndpointView.__struct_fields__, "room")
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    await asyncio.sleep(0)
    return msgspec.Raw(msgspec.json.encode(dict(zip(names, columns, strict=True))))


async def decision_columns(kept: Sequence[KeptDecision], clock_began: float) -> DecisionColumns:
    """Return decisions as columns. `clock_began` is the time of day when the clock was 0."""
    rows = []
    for at, each in enumerate(kept):
        rows.append(_row(each, clock_began))
        if at % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    names = DecisionColumns.__struct_fields__
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return msgspec.convert(dict(zip(names, columns, strict=True)), DecisionColumns)


def _row(kept: KeptDecision, clock_began: float) -> tuple[object, ...]:
    outline = kept.outline
    ending = _RUNS if kept.ending is None else ending_view(kept.ending, kept.decided_at)
    prompt = ending.prompt_tokens
    return (
        kept.number,
        kept.request_id,
        kept.client_id[:_MAX_CHARACTERS],
        kept.model[:_MAX_CHARACTERS],
        round(_MILLI * (clock_began + kept.decided_at)),
        outline.endpoint,
        outline.prompt_tokens if prompt is None else prompt,
        outline.cached_tokens,
        ending.cached_tokens,
        None if outline.ttft is None else round(_MILLI * outline.ttft, 1),
        ending.ttft_ms,
        ending.duration_ms,
        ending.status,
        None if ending is _RUNS else ending.outcome,
    )
