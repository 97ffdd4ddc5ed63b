"""Hashing, matching and memory, compiled beside Python, as a PNG."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from bench.chart import GOOD, INK, OTHER, drawing, png
from bench.index.speed import FLEETS, SIZES_KB

Curve = Sequence[tuple[int, float]]

_COLOURS = {"": (GOOD, "compiled"), "_python": (OTHER, "Python")}


def draw(medians: Mapping[str, float], curves: Mapping[str, Curve]) -> bytes:
    """Draw medians by key; `curves` are bytes a block as an index fills, by suffix of the key."""
    with drawing(9.6, 3.1) as figure:
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
        memory.axhline(48, color=INK, lw=0.8, ls=":")
        hashes.legend(frameon=False)
        return png(figure)


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
