"""Predicted against reported cached tokens, a predictor a panel, as a PNG."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from bench.accuracy.errors import errors
from bench.accuracy.figures import PREDICTORS
from bench.accuracy.observation import Guess
from bench.chart import GOOD, OTHER, drawing, png

_PANEL = (3.1, 2.95)
_PANELS_A_ROW = 3


def draw(guesses: Mapping[str, Sequence[Guess]], block: int) -> bytes:
    """Draw every predictor that there is, in the order of the table."""
    names = [name for name in PREDICTORS if guesses.get(name)]
    columns = min(_PANELS_A_ROW, len(names))
    rows = -(-len(names) // columns)
    limit = 1.04 * max(
        max(guess.predicted, guess.actual) for name in names for guess in guesses[name]
    )
    with drawing(_PANEL[0] * columns, _PANEL[1] * rows) as figure:
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
        for axes, name in zip(panels, names, strict=False):
            colour = GOOD if name in {"text", "tokens", "events"} else OTHER
            _panel(axes, guesses[name], block, colour)
            axes.set(
                title=PREDICTORS[name].replace(", ", ",\n", 1), xlim=(0, limit), ylim=(0, limit)
            )
        for axes in list(panels)[len(names) :]:
            axes.set_visible(False)
        figure.supxlabel("cached tokens, reported by the server", fontsize=9.5)
        figure.supylabel("predicted when the request was routed", fontsize=9.5)
        return png(figure)


def _panel(axes: Axes, guesses: Sequence[Guess], block: int, colour: str) -> None:
    axes.axline((0, 0), slope=1, color="#9aa3b0", lw=1)
    actual = [guess.actual for guess in guesses]
    predicted = [guess.predicted for guess in guesses]
    axes.plot(actual, predicted, "o", color=colour, ms=3.2, alpha=0.4, mew=0)
    summed = errors(guesses, block)
    says = f"error {summed.mae:.1f} %\noff {summed.off:.0f} % of requests"
    axes.text(0.04, 0.96, says, transform=axes.transAxes, va="top", fontsize=8.5)
