"""How the plots of benchmarks look, and how they become PNGs."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from epp.demo.charts import COLOURS
from epp.replay.results.style import FAINT, INK, LOOK

__all__ = ["FAINT", "GOOD", "INK", "OTHER", "bars", "drawing", "png"]

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


def bars(axes: Axes, lengths: Sequence[float], place: int, subject: int, said: str) -> None:
    """Draw a bar with its length, said so, in each row: the first or, paler, the second of two."""
    rows = range(len(lengths))
    drawn = axes.barh(
        [row + 0.4 * place - 0.2 for row in rows],
        lengths,
        0.36,
        color=[GOOD if row == subject else OTHER for row in rows],
        alpha=1 - 0.45 * place,
    )
    axes.bar_label(drawn, fmt=said, padding=3)
