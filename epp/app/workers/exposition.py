"""Metrics pages of several processes as the page of one.

Counters and histograms are added up, also those of processes that have ended: a counter never goes
back. `RULES` says how gauges are combined.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import add
from typing import Final

import msgspec

from epp.adapters.telemetry import families, queue_metrics
from epp.adapters.telemetry.series import Family
from epp.app import fleet_log
from epp.app.flow import flow_metrics
from epp.app.replicas import families as replica_families

Samples = dict[str, float]
"""Values by their series, as it is written: the name and the labels."""
Rule = Callable[[float, float], float]
"""Combines two values of one series."""

_MAX_KEPT: Final = 50_000
"""Series that are kept of processes that have ended."""
_ADDED_UP: Final = {"counter", "histogram"}


def _names(rule: Rule, *found: Family) -> Iterator[tuple[str, Rule]]:
    for family in found:
        yield family.name, rule
        if family.alias is not None:
            yield family.alias.name, rule


RULES: Final[Mapping[str, Rule]] = {
    **dict(_names(add, families.RUNNING, families.STREAMS)),
    **dict(_names(add, families.IN_FLIGHT_REQUESTS, families.IN_FLIGHT_TOKENS)),
    **dict(_names(add, flow_metrics.WAITING, flow_metrics.WAITING_BYTES)),
    **dict(_names(add, queue_metrics.SIZE, queue_metrics.BYTES)),
    **dict(_names(max, *queue_metrics.USED.values(), *queue_metrics.USED_IN_ALL.values())),
    **dict(_names(max, fleet_log.EJECTED)),
    **dict(_names(add, replica_families.MISSING)),
    **dict(_names(min, replica_families.KNOWN, replica_families.REACHED, replica_families.HEARD)),
    "process_virtual_memory_bytes": add,
    "process_resident_memory_bytes": add,
    "process_open_fds": add,
    "process_max_fds": min,
    "process_start_time_seconds": min,
}
"""Gauges of which each process has its own values.

Other gauges show what all processes believe of the pool alike: those of the first are shown."""


class FamilySamples(msgspec.Struct):
    """One family of a page."""

    kind: str
    head: str
    """Its lines of help and type."""
    samples: Samples


Page = dict[str, FamilySamples]
"""The families of a page by their names, in their order."""


def read_page(text: str) -> Page:
    """Read a page that a picker has written, in either format."""
    page: Page = {}
    head, family = "", FamilySamples("", "", {})
    for line in text.split("\n"):  # labels may have what else ends a line to Python
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            family = page[name] = FamilySamples(kind, f"{head}{line}\n", {})
        elif line.startswith("#"):  # its help
            head = f"{line}\n"
        elif line:
            series, _, value = line.rpartition(" ")
            family.samples[series] = float(value)
    return page


def merged(pages: Sequence[Page], *ended: Page) -> Page:
    """Return one page of running processes, the first counting most, with counts of ended ones."""
    found: Page = {}
    for page in pages:
        for name, family in page.items():
            before = found.get(name)
            if before is None:
                found[name] = FamilySamples(family.kind, family.head, dict(family.samples))
            elif family.kind in _ADDED_UP:
                _combine(before.samples, family.samples, add)
            elif name in RULES:
                _combine(before.samples, family.samples, RULES[name])
    for name, family in (each for page in ended for each in page.items()):
        before = found.setdefault(name, FamilySamples(family.kind, family.head, {}))
        _combine(before.samples, family.samples, add)
    return found


def _combine(into: Samples, more: Samples, rule: Rule) -> None:
    for series, value in more.items():
        before = into.get(series)
        into[series] = value if before is None else rule(before, value)


def keep_counts(ended: Page, last: Page) -> None:
    """Add the counts of an ended process, by its last page, to those of earlier ones."""
    room = _MAX_KEPT - sum(len(family.samples) for family in ended.values())
    for name, family in counts_of(last).items():
        kept = ended.setdefault(name, FamilySamples(family.kind, family.head, {}))
        for series, value in family.samples.items():
            if series in kept.samples:
                kept.samples[series] += value
            elif room > 0:
                room -= 1
                kept.samples[series] = value


def keep_forgotten(forgotten: Page, last: Page, page: Page) -> None:
    """Add the counts of a process's last page that the next one lacks, or has started again."""
    for name, family in counts_of(last).items():
        now = page[name].samples if name in page else {}
        gone = {each: value for each, value in family.samples.items() if now.get(each, 0) < value}
        if gone:
            kept = forgotten.setdefault(name, FamilySamples(family.kind, family.head, {}))
            _combine(kept.samples, gone, add)


def drop_unseen(forgotten: Page, pages: Sequence[Page]) -> None:
    """Forget the series that no page has any more: a counter that is gone cannot go back."""
    for name, family in list(forgotten.items()):
        seen = [page[name].samples for page in pages if name in page]
        for series in [each for each in family.samples if not any(each in one for one in seen)]:
            del family.samples[series]
        if not family.samples:
            del forgotten[name]


def counts_of(page: Page) -> Page:
    """Return the families of a page that are summed, for a process that does not answer."""
    return {name: family for name, family in page.items() if family.kind in _ADDED_UP}


def written(page: Page, number: Callable[[float], str]) -> Iterator[str]:
    """Yield the families of a page as text. `number` writes a value."""
    for family in page.values():
        yield family.head + "".join(_lines(family.samples.items(), number))


def _lines(samples: Iterable[tuple[str, float]], number: Callable[[float], str]) -> Iterator[str]:
    for series, value in samples:
        yield f"{series} {int(value) if value.is_integer() else number(value)}\n"
