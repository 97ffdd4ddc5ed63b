"""What a benchmark hands back: named figures with their runs, and what was promised of them."""

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A promise about a figure.

    `most` and `least` bound its value, `of_floor` bounds its ratio to the figure of the same key
    with `_floor` appended. Whatever is None was not promised.
    """

    most: float | None = None
    least: float | None = None
    of_floor: float | None = None

    def __str__(self) -> str:
        parts = []
        if self.most is not None:
            parts.append(f"≤ {self.most:g}")
        if self.least is not None:
            parts.append(f"≥ {self.least:g}")
        if self.of_floor is not None:
            parts.append(f"≤ {self.of_floor:.2f} times floor")
        return ", ".join(parts)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured quantity: `runs` holds what each repetition gave, its value is their median.

    `says` is the quantity in words; `unit` is for display only.
    """

    key: str
    says: str
    unit: str
    runs: tuple[float, ...]
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError(f"{self.key}: a figure needs at least one run")

    @property
    def value(self) -> float:
        """The median of the runs."""
        return median(self.runs)


def single(key: str, says: str, unit: str, value: float, budget: Budget | None = None) -> Figure:
    """Return the figure of what was measured once."""
    return Figure(key=key, says=says, unit=unit, runs=(value,), budget=budget)


def several(
    key: str, says: str, unit: str, runs: Iterable[float], most: float | None = None
) -> Figure:
    """Return the figure of several runs, whose median is to be `most` at most."""
    budget = None if most is None else Budget(most=most)
    return Figure(key=key, says=says, unit=unit, runs=tuple(runs), budget=budget)


class Grid(msgspec.Struct, frozen=True):
    """Figures that are read side by side: a row has a name and the key of a figure per column.

    A row's promise is that of its first figure.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one benchmark measured. Floors are figures too: `<key>_floor`.

    `picture`, a PNG, shows what figures cannot; empty where there is none.
    """

    name: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    picture: bytes = b""

    def find(self, key: str) -> Figure | None:
        """The figure with that key, if it was measured."""
        return next((figure for figure in self.figures if figure.key == key), None)

    def floor_of(self, figure: Figure) -> Figure | None:
        """What the same work costs without the thing measured, if it was measured beside it."""
        return self.find(f"{figure.key}_floor")

    def ratio_of(self, figure: Figure) -> float | None:
        """Median over the floor's median, None without a floor."""
        floor = self.floor_of(figure)
        return figure.value / floor.value if floor and floor.value > 0 else None

    def kept(self, figure: Figure) -> bool | None:
        """Whether the figure is within its budget, None where nothing was promised."""
        if figure.budget is None:
            return None
        ratio = self.ratio_of(figure)
        limits = (
            (figure.budget.most, figure.value, 1),
            (figure.budget.least, figure.value, -1),
            (figure.budget.of_floor, ratio, 1),
        )
        return all(
            value is not None and sign * value <= sign * limit
            for limit, value, sign in limits
            if limit is not None
        )

    def rows(self) -> Sequence[Figure]:
        """The figures that get a line of their own: those shown beside no other."""
        beside = {floor.key for figure in self.figures if (floor := self.floor_of(figure))}
        beside |= {key for grid in self.grids for _, keys in grid.rows for key in keys}
        return [figure for figure in self.figures if figure.key not in beside]
