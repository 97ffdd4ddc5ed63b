"""Hashing, matching and memory, compiled beside Python, as a PNG."""

import io
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from bench.index.speed import FLEETS, SIZES_KB

Curve = Sequence[tuple[int, float]]

_COLOURS = {"": ("#d9480f", "compiled"), "_python": ("#7c8aa0", "Python")}
_INK, _FAINT = "#2b2f36", "#e4e7ec"
_LOOK = {
    "font.size": 9.5,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": "#9aa3b0",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": _FAINT,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def draw(medians: Mapping[str, float], curves: Mapping[str, Curve]) -> bytes:
    """Draw medians by key; `curves` are bytes a block as an index fills, by suffix of the key."""
    with mpl.rc_context(_LOOK):
        figure = Drawing(figsize=(9.6, 3.1), layout="constrained")
        hashes, matches, memory = figure.subplots(1, 3)
        for suffix, look in _COLOURS.items():
            colour, label = look
            _line(hashes, medians, "hash_us_{}kb" + suffix, SIZES_KB, look)
            _line(matches, medians, "matches_per_s_{}" + suffix, FLEETS, look)
            if suffix in curves:
                held, taken = zip(*curves[suffix], strict=True)
                memory.plot([each / 1e6 for each in held], taken, color=colour, label=label)
        hashes.set(title="Cut and hash a text, µs", xlabel="KB", xscale="log", yscale="log")
        matches.set(
            title="Matches of 512 blocks, 1/s", xlabel="endpoints", xscale="log", yscale="log"
        )
        memory.set(
            title="Pool and index, bytes a block", xlabel="million blocks held", ylim=(0, None)
        )
        memory.axhline(48, color=_INK, lw=0.8, ls=":")
        hashes.legend(frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


def _line(
    axes: Axes,
    medians: Mapping[str, float],
    key: str,
    places: Sequence[int],
    look: tuple[str, str],
) -> None:
    colour, label = look
    known = [(place, medians[name]) for place in places if (name := key.format(place)) in medians]
    if known:
        across, up = zip(*known, strict=True)
        axes.plot(across, up, "o-", color=colour, label=label, ms=4)
