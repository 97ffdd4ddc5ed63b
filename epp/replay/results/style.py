"""How plots look: colours, fonts, axes of time, and SVG text that follows the page's colours."""

import io
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

INK = "#2b2f36"
FAINT = "#e4e7ec"
EDGE = "#9aa3b0"
CARD = "#fefefe"
NEUTRAL = "#7c8aa0"
ACCENT = "#d9480f"
OTHERS = ("#1c7ed6", "#2f9e44", "#ae3ec9", "#e8a200", "#0c9aa8", "#e64980", "#7048e8", "#94742c")
HEAT = LinearSegmentedColormap.from_list("heat", ("#fff4e6", "#ffc078", "#e8590c", "#7a1f04"))
VARIABLES: Mapping[str, str] = {INK: "--ink", FAINT: "--grid", EDGE: "--edge", CARD: "--card"}
"""A page may set these for its dark form; without them a plot has the colours named here."""
LOOK = {
    "svg.fonttype": "path",
    "svg.hashsalt": "warmpick",
    "font.size": 10.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.labelcolor": INK,
    "axes.edgecolor": EDGE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "grid.color": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def draw(size: tuple[float, float], paint: Callable[[Figure], None]) -> str:
    """Return the drawing that is painted on a figure of this size (inches), as an `<svg>` element.

    It scales with the page.
    """
    buffer = io.StringIO()
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for colour, name in VARIABLES.items():
        text = text.replace(colour, f"var({name}, {colour})")
    return text


def palette(policies: Sequence[str], best: str, baseline: str) -> dict[str, str]:
    """Return a colour for each policy: the best stands out, the baseline is grey."""
    rest = [policy for policy in policies if policy not in {best, baseline}]
    others = {policy: OTHERS[place % len(OTHERS)] for place, policy in enumerate(rest)}
    return others | {baseline: NEUTRAL} | {best: ACCENT}


def in_seconds(axis: Axis) -> None:
    """Label a logarithmic axis with durations."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_seconds(value)))
    axis.set_minor_locator(NullLocator())


def short_seconds(value: float) -> str:
    """Return a duration as a tick's label."""
    return f"{value * 1000:,.4g} ms" if value < 0.9995 else f"{value:,.4g} s"  # noqa: PLR2004


def legend_above(axes: Axes, columns: int) -> None:
    """Put the legend above the plot, at its right."""
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=columns,
        columnspacing=1.2,
        handlelength=1.4,
        borderaxespad=0.2,
    )
