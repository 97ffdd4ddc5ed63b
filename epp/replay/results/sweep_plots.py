"""The plots of many cells: how the policies' TTFT changes with load or with the number of pods."""

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from epp.replay.results.comparison import LEADING, Cell, Comparison
from epp.replay.results.plots import WIDTH
from epp.replay.results.style import ACCENT, draw, in_seconds, palette

ACROSS = 3
"""Panels beside each other."""
HIGH = 2.5
"""Inches of a panel."""


def sweep_plot(comparison: Comparison) -> str:
    """Return a panel for each workload (and number of pods); empty if no axis has two values.

    The horizontal axis is the load if it varies, otherwise the number of pods. A workload that was
    played at only one value has no panel.
    """
    axis = next((name for name in ("load", "pods") if _varies(comparison.cells, name)), None)
    if axis is None:
        return ""
    panels: dict[str, list[Cell]] = {}
    for cell in comparison.cells:
        pods = f", {cell.pods} pods" if axis == "load" else ""
        panels.setdefault(f"{cell.workload}{pods}", []).append(cell)
    panels = {title: cells for title, cells in panels.items() if len(cells) > 1}
    shown = {getattr(cell, axis) for cells in panels.values() for cell in cells}
    across = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / across)

    def paint(figure: Figure) -> None:
        grid = figure.subplots(down, across, sharex=True, squeeze=False)
        for axes, (title, cells) in zip(grid.flat, panels.items(), strict=False):
            _panel(axes, comparison, cells, axis)
            axes.xaxis.set_major_locator(FixedLocator(sorted(shown)))
            axes.set_title(title, loc="left")
        for place, axes in enumerate(grid.flat):
            if place >= len(panels):
                axes.set_axis_off()
            elif place + across >= len(panels):
                axes.tick_params(labelbottom=True)  # nothing is below it
        figure.supxlabel(axis, size=10)
        figure.supylabel("TTFT mean; band: least to most of the seeds", size=9)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(5, len(labels)))

    return draw((WIDTH, 1.0 + HIGH * down), paint)


def _varies(cells: Iterable[Cell], name: str) -> bool:
    """Return whether the cells of a workload differ in this field."""
    found: dict[str, set[float]] = {}
    for cell in cells:
        found.setdefault(cell.workload, set()).add(getattr(cell, name))
    return any(len(values) > 1 for values in found.values())


def _panel(axes: Axes, comparison: Comparison, cells: Sequence[Cell], axis: str) -> None:
    colours = palette(comparison.policies, comparison.best, comparison.baseline)
    ordered = sorted(cells, key=attrgetter(axis))
    for policy in comparison.policies:
        here = [cell for cell in ordered if policy in cell.standings]
        places = [getattr(cell, axis) for cell in here]
        found = [cell.standings[policy].figures[LEADING] for cell in here]
        colour = colours[policy]
        front = 3 if colour == ACCENT else 2
        axes.fill_between(
            places,
            [each.least for each in found],
            [each.most for each in found],
            color=colour,
            alpha=0.15,
            lw=0,
        )
        axes.plot(
            places,
            [each.mean for each in found],
            "o-",
            color=colour,
            lw=1.8,
            ms=4,
            label=policy,
            zorder=front,
        )
    axes.set_yscale("log")
    in_seconds(axes.yaxis)
    if axis == "pods":
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
