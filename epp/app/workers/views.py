"""The views of several workers of decisions, endpoints and their state, merged into one picker's.

A decision's number is its place among those of all workers, by the time at which it was made.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import astuple, replace

from epp.app.console.views import (
    BandView,
    ConsolePage,
    DecisionColumns,
    ReplicasView,
    ShadowView,
    Totals,
    WaitingView,
)
from epp.app.observing.fleet_view import EndpointsPage, EndpointView
from epp.app.observing.views import DecisionsPage, DecisionView

T = TypeVar("T", str, int)

_SEEN_BY_ONE: Final = (
    "responses",
    "prompt_tokens",
    "cached_prompt_tokens",
    "predicted_cached_tokens",
    "error_tokens",
)
"""Fields of `EndpointView` that count what one worker saw; all workers share the others."""


Row = tuple[int, int, int]
"""A decision's number, its worker's place, and its place on that worker's page."""


class Made(msgspec.Struct, frozen=True):
    """How many decisions were made."""

    each: Sequence[int]
    """By each worker, since it was started."""
    before: int
    """By workers before they were started again."""


def in_order(times: Sequence[Sequence[T]], made: Made, until: T) -> tuple[Sequence[Row], int]:
    """Number the last decisions of each worker, each worker's in the order of `times`.

    Return them in the order of time, and the number of the last one.

    `until` is a time before any of them was asked. Later decisions are left for the next call,
    because those of another worker may be missing. Each worker shows more decisions than it has
    made since.
    """
    known = [[each for each in several if each < until] for several in times]
    late = sum(map(len, times)) - sum(map(len, known))
    last = made.before + sum(made.each) - late
    merged = sorted(
        (time, worker, place)
        for worker, kept in enumerate(known)
        for place, time in enumerate(kept)
    )
    # Of a worker with more decisions than it shows, those before its first one are not known.
    begun = max(
        (
            (shown[0], worker)
            for worker, (shown, count) in enumerate(zip(times, made.each, strict=True))
            if shown and count > len(shown)
        ),
        default=None,
    )
    whole = merged if begun is None else [each for each in merged if each[:2] >= begun]
    first = last - len(whole) + 1
    return [(first + at, worker, place) for at, (_, worker, place) in enumerate(whole)], last


def merged_decisions(
    pages: Sequence[DecisionsPage], made: Made, until: str, since: int | None, limit: int
) -> DecisionsPage:
    """Return the first decisions of all workers after a number; without one, the last ones."""
    times = [[each.at for each in page.decisions] for page in pages]
    rows, last = in_order(times, made, until)
    rows = rows[-limit:] if since is None else [each for each in rows if each[0] > since][:limit]
    chosen = tuple(
        replace(pages[worker].decisions[place], number=number) for number, worker, place in rows
    )
    return DecisionsPage(last=rows[-1][0] if rows else last, decisions=chosen)


def decisions_on(pages: Iterable[DecisionsPage], limit: int) -> DecisionsPage:
    """Return the decisions on one request, whichever workers made them."""
    found: list[DecisionView] = [each for page in pages for each in page.decisions]
    found.sort(key=lambda each: each.at)
    return DecisionsPage(last=sum(page.last for page in pages), decisions=tuple(found[:limit]))


def merged_endpoints(pages: Sequence[EndpointsPage], decisions: int) -> EndpointsPage:
    """Return the endpoints as the first worker sees them, with what all counted."""
    seen: defaultdict[str, list[EndpointView]] = defaultdict(list)
    for each in (view for page in pages for view in page.endpoints):
        seen[each.endpoint].append(each)
    return replace(
        pages[0],
        decisions=decisions,
        endpoints=tuple(
            replace(each, **_sums(seen[each.endpoint], _SEEN_BY_ONE)) for each in pages[0].endpoints
        ),
    )


def merged_console(
    pages: Sequence[ConsolePage], made: Made, until: int, since: int, limit: int
) -> ConsolePage:
    """Return the state of all workers, and their last decisions after a number."""
    first = pages[0]
    rows, last = in_order([page.recent.at_ms for page in pages], made, until)
    rows = [each for each in rows if each[0] > since][-limit:]
    started = "".join(page.started for page in pages)
    return replace(
        first,
        started=sha256(started.encode()).hexdigest()[:16],
        at_ms=min(page.at_ms for page in pages),
        decisions=last,
        endpoints=_columns([page.endpoints for page in pages]),
        totals=Totals(**_sums([page.totals for page in pages], Totals.__struct_fields__)),
        recent=_recent([page.recent for page in pages], rows),
        ended=_all_of([page.ended for page in pages]),
        waiting=_waiting([page.waiting for page in pages]),
        replicas=_replicas([page.replicas for page in pages if page.replicas is not None]),
        shadow=_shadow([page.shadow for page in pages if page.shadow is not None]),
    )


def _recent(pages: Sequence[DecisionColumns], rows: Sequence[Row]) -> DecisionColumns:
    columns = {
        name: tuple(getattr(pages[worker], name)[place] for _, worker, place in rows)
        for name in DecisionColumns.__struct_fields__
    }
    return DecisionColumns(**columns | {"number": tuple(number for number, *_ in rows)})


def _all_of(pages: Sequence[DecisionColumns]) -> DecisionColumns:
    columns = zip(*map(astuple, pages), strict=True)
    names = DecisionColumns.__struct_fields__
    return DecisionColumns(
        **{name: sum(each, ()) for name, each in zip(names, columns, strict=True)}
    )


def _columns(pages: Sequence[msgspec.Raw]) -> msgspec.Raw:
    read = [msgspec.json.decode(page, type=dict[str, list[Any]]) for page in pages]
    first = read[0]
    for other in read[1:]:
        places = {name: at for at, name in enumerate(other["endpoint"])}
        for at, name in enumerate(first["endpoint"]):
            place = places.get(name)
            if place is not None:
                for column in _SEEN_BY_ONE:
                    first[column][at] += other[column][place]
    return msgspec.Raw(msgspec.json.encode(first))


def _sums(several: Sequence[object], names: Iterable[str]) -> dict[str, Any]:
    """Return the sums of some fields, by their names."""
    return {name: sum(getattr(each, name) for each in several) for name in names}


def _counts(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    added: Counter[str] = Counter()
    for each in several:
        added.update(each)
    return dict(added)


def _waiting(several: Sequence[WaitingView]) -> WaitingView:
    bands: dict[int, BandView] = {}
    for band in (each for view in several for each in view.bands):
        before = bands.get(band.priority)
        there = [band] if before is None else [before, band]
        bands[band.priority] = replace(band, **_sums(there, ("requests", "bytes")))
    return replace(
        several[0],
        **_sums(several, ("requests", "bytes", "waited")),
        prefill_seconds=round(sum(each.prefill_seconds for each in several), 3),
        bands=tuple(bands[priority] for priority in sorted(bands, reverse=True)),
        no_room=_counts(each.no_room for each in several),
        refused=_counts(each.refused for each in several),
        waited_seconds=round(sum(each.waited_seconds for each in several), 3),
    )


def _replicas(several: Sequence[ReplicasView]) -> ReplicasView | None:
    """Return the other replicas as the first worker sees them, with what all counted."""
    if not several:
        return None
    return replace(
        several[0],
        warm=all(each.warm for each in several),
        dropped=_counts(each.dropped for each in several),
        **_sums(several, ("applied", "unsent", "compared_same", "compared_different")),
    )


def _shadow(several: Sequence[ShadowView]) -> ShadowView | None:
    if not several:
        return None
    counted = [name for name in ShadowView.__struct_fields__ if name != "policy"]
    return replace(several[0], **_sums(several, counted))
