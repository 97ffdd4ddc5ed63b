"""The plot of docs/policies.md, of figures of policies-study.md: `python -m bench.study.gain`."""

import re
from collections.abc import Mapping

from bench.chart import FAINT, bars, drawing, png
from bench.docs import DOCS
from bench.study.field import OURS
from bench.study.grid import BASELINE

_PAGE = DOCS / "policies-study.md"
_PLOT = DOCS / "gain.png"
SHOWN = (OURS, "smg-cache-aware", BASELINE, "least-request")
MEASURES = ("Mean TTFT", "Mean end to end")
FLEETS = ("equal pods", "every second pod 2.5 times slower, unlabelled")


def overall(page: str, measure: str, fleet: str) -> Mapping[str, float]:
    """Return each policy's ratio to llm-d-router's default over all workloads of a fleet."""
    heading = re.escape(f"### {measure}, {fleet}\n")
    (table,) = re.findall(rf"^{heading}(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| \**([\d.]+)\** \|$", table, re.MULTILINE)
    return {policy: float(ratio) for policy, ratio in rows}


def draw(page: str) -> bytes:
    """Draw the ratios of some policies as bars."""
    with drawing(8.2, 2.3) as figure:
        axes = figure.subplots(1, len(MEASURES), sharey=True)
        for each, measure in zip(axes, MEASURES, strict=True):
            each.set_title(f"{measure}, to llm-d-router's default")
            each.axvline(1, linewidth=0.8, color=FAINT, zorder=0)
            for place, fleet in enumerate(FLEETS):
                ratios = overall(page, measure, fleet)
                lengths = [ratios[policy] for policy in SHOWN]
                bars(each, lengths, place, SHOWN.index(OURS), "{:.2f}")
            each.set_yticks(range(len(SHOWN)), SHOWN)
            each.margins(x=0.12)
            each.grid(visible=False)
        axes[0].invert_yaxis()
        figure.supxlabel("left is faster; pale: every second pod is 2.5 times slower", size=9)
        return png(figure)


if __name__ == "__main__":
    _PLOT.write_bytes(draw(_PAGE.read_text(encoding="utf-8")))
