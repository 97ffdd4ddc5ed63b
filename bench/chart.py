"""How the plots of benchmarks look, and how they become PNGs."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.figure import Figure

GOOD, OTHER, INK, FAINT = "#d9480f", "#7c8aa0", "#2b2f36", "#e4e7ec"
"""What a plot is about, what it is compared with, text, and lines that guide the eye."""
_LOOK = {
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa3b0",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
}
_DOTS_PER_INCH = 130


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Give a figure of so many inches, on which what is drawn looks as all plots do."""
    with mpl.rc_context(_LOOK):
        yield Figure(figsize=(width, height), layout="constrained")


def png(figure: Figure) -> bytes:
    """Give a figure as a PNG; called while it is being drawn."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()
