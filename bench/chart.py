"""How the plots of benchmarks look, and how they become PNGs."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.figure import Figure

from epp.demo.charts import COLOURS
from epp.replay.results.look import FAINT, INK, LOOK

__all__ = ["FAINT", "GOOD", "INK", "OTHER", "drawing", "png"]

OTHER, GOOD = COLOURS
"""What a plot's subject is compared with, and the subject."""
_LOOK = LOOK | {
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
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
