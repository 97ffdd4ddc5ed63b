"""A report as a table on the terminal and as Markdown. Both show the same cells."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.figures import Figure, Grid, Report

HEADINGS = ("key", "what", "median (min - max)", "floor", "times floor", "budget", "within budget")
_IF_ANY = frozenset(HEADINGS[3:])
_VERDICT = {True: "yes", False: "no", None: ""}
_COLOUR = {"yes": "green", "no": "red", "": ""}


def cells(report: Report, figure: Figure) -> tuple[str, ...]:
    """One row, as text, in the order of `HEADINGS`."""
    floor, ratio = report.floor_of(figure), report.ratio_of(figure)
    return (
        figure.key,
        figure.says,
        _spread(figure),
        _spread(floor) if floor else "",
        f"{ratio:.2f}" if ratio is not None else "",
        str(figure.budget or ""),
        _VERDICT[report.kept(figure)],
    )


def grid_cells(report: Report, grid: Grid) -> list[tuple[str, ...]]:
    """All rows of a grid, as text; each ends with its promise and whether it was kept."""
    rows = []
    for name, keys in grid.rows:
        figures = [report.find(key) for key in keys]
        values = [_spread(figure) if figure else "" for figure in figures]
        promised = cells(report, figures[0])[-2:] if figures[0] else ("", "")
        rows.append((name, *values, *promised))
    return rows


def show(report: Report, console: Console) -> None:
    """Print the table and its notes."""
    console.print(report.name, style="bold")
    for grid in report.grids:
        heads = (grid.title, *grid.columns, *HEADINGS[-2:])
        _print(console, heads, grid_cells(report, grid))
    if rows := [cells(report, figure) for figure in report.rows()]:
        _print(console, HEADINGS, rows)
    for note in report.notes:
        console.print(note, style="dim")


def _print(console: Console, heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(*heads, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row, style=_COLOUR[row[-1]] or None)
    console.print(table)


def markdown(report: Report, *, machine: str, command: str) -> str:
    """The table as Markdown, with the command and the machine above it."""
    lines = [f"`{command}` on {machine}.", ""]
    for grid in report.grids:
        heads = (grid.title, *grid.columns, *HEADINGS[-2:])
        rules = ("---", *("--:" for _ in grid.columns), "---", "---")
        lines += _table(heads, rules, grid_cells(report, grid))
    rows = [cells(report, figure) for figure in report.rows()]
    rules = ("---",) * 2 + ("--:",) * 3 + ("---",) * 2
    lines += _table(HEADINGS, rules, [(f"`{key}`", *rest) for key, *rest in rows])
    return "\n".join([*lines, *(f"- {note}" for note in report.notes), ""])


def _table(
    heads: tuple[str, ...], rules: tuple[str, ...], rows: Sequence[tuple[str, ...]]
) -> list[str]:
    """The lines of a table, without the columns of `_IF_ANY` that no row has; none without rows."""
    shown = [
        column
        for column, head in enumerate(heads)
        if head not in _IF_ANY or any(row[column] for row in rows)
    ]
    lines = [_line(tuple(row[column] for column in shown)) for row in (heads, rules, *rows)]
    return [*lines, ""] if rows else []


def _line(row: tuple[str, ...]) -> str:
    return "| " + " | ".join(row) + " |"


def _spread(figure: Figure) -> str:
    text = _number(figure.value)
    if len(figure.runs) > 1:
        text += f" ({_number(min(figure.runs))} - {_number(max(figure.runs))})"
    return f"{text} {figure.unit}".strip()


def _number(value: float) -> str:
    """Three significant digits, thousands in full."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
