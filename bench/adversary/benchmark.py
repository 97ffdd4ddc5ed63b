"""`adversary`: attacks on the picker, and a verdict on each."""

import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import grpc.aio
import msgspec

from bench.adversary import (
    asked,
    bodies,
    campaign,
    clients,
    events,
    files,
    media,
    servers,
    tls,
    wires,
)
from bench.adversary.attack import WORST_MS, Attack, Finding
from bench.child import MeasurementFailed
from bench.figures import Budget, Grid, Report, single
from bench.options import Options
from bench.progress import Progress

_KINDS = (bodies, media, clients, servers, files, wires, tls, events, asked)
"""In this order. Attacks on one kind of picker follow each other."""
_COLUMNS = (
    ("broken", "bounds that were not kept", ""),
    ("worst_ms", "the longest that others waited", "ms"),
    ("control_ms", "the same at a picker that was let be", "ms"),
    ("held_ms", "the longest that the event loop was held, of CPU time", "ms"),
    ("errors", "others' errors", ""),
    ("sent_mb", "what was sent", "MiB"),
    ("grown_mb", "memory at its peak, more than before", "MiB"),
    ("after_mb", "memory that stayed, since the process was ready", "MiB"),
)


async def measure(progress: Progress, options: Options) -> Report:
    """Carry out what was asked for. Raises `MeasurementFailed` if that is nothing."""
    chosen = [attack for attack in _all() if _wanted(attack, options.only)]
    if not chosen:
        raise MeasurementFailed(f"no attack has the group or the name {', '.join(options.only)}")
    found: list[Finding] = []
    grpc.aio.init_grpc_aio()  # its thread lives on: a forked child may collect its last object
    for transport in options.transports:
        with tempfile.TemporaryDirectory(prefix="warmpick-adversary-") as logs:
            found += await campaign.run(chosen, transport, Path(logs), progress)
    if options.records is not None:
        options.records.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return _report(found)


def _all() -> Iterator[Attack]:
    for kind in _KINDS:
        yield from kind.attacks()


def _wanted(attack: Attack, only: Sequence[str]) -> bool:
    return not only or any(each == attack.group or fnmatch(attack.name, each) for each in only)


def _report(found: Sequence[Finding]) -> Report:
    figures, rows, notes = [], [], []
    for finding in found:
        name = f"{finding.transport} {finding.name}"
        keys = tuple(f"{name} {column}" for column, _, _ in _COLUMNS)
        for key, (column, says, unit) in zip(keys, _COLUMNS, strict=True):
            value = len(finding.broken) if column == "broken" else getattr(finding, column)
            budget = Budget(most=0) if column == "broken" else None
            figures.append(single(key, says, unit, value, budget))
        rows.append((f"{finding.group:<14} {name}", keys))
        notes += [f"{name}: {each}" for each in finding.broken]
    notes.append(
        f"Others may wait {WORST_MS:g} ms more than at the picker that was let be, err never;"
        " memory may grow by four times what was sent, 256 MiB at most."
    )
    titles = tuple(column for column, _, _ in _COLUMNS)
    grid = Grid(title="group, attack", columns=titles, rows=tuple(rows))
    return Report(name="adversary", figures=tuple(figures), notes=tuple(notes), grids=(grid,))
