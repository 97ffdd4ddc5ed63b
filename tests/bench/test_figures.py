"""A figure keeps its promise, or the table says that it does not."""

import pytest

from bench import docs, table
from bench.figures import Budget, Figure, Grid, Report
from epp.errors import ConfigError


def figure(key, *runs, **more):
    return Figure(key=key, says=f"what {key} is", unit="ms", runs=runs, **more)


def report(*figures, **more):
    return Report(name="b", figures=figures, **more)


@pytest.mark.parametrize(
    ("runs", "value"), [((3.0,), 3.0), ((9.0, 1.0, 2.0), 2.0), ((1.0, 2.0), 1.5)]
)
def test_a_value_is_the_median_of_its_runs(runs, value):
    assert figure("a", *runs).value == value


def test_a_figure_without_a_run_cannot_be_made():
    with pytest.raises(ValueError, match="at least one run"):
        figure("a")


@pytest.mark.parametrize(
    ("budget", "floor", "kept"),
    [
        (None, (), None),
        (Budget(most=10), (), True),
        (Budget(most=9.9), (), False),
        (Budget(least=10), (), True),
        (Budget(least=10.1), (), False),
        (Budget(of_floor=2), (5.0,), True),
        (Budget(of_floor=2), (4.9,), False),
        (Budget(of_floor=2), (), False),  # promised against something that was not measured
        (Budget(of_floor=2), (0.0,), False),
        (Budget(most=10, of_floor=1), (5.0,), False),
    ],
)
def test_a_promise_is_kept_or_not(budget, floor, kept):
    promised = figure("a", 10.0, budget=budget)
    floors = [figure("a_floor", *floor)] if floor else []
    assert report(promised, *floors).kept(promised) is kept


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget(most=0.8), "≤ 0.8"),
        (Budget(least=3), "≥ 3"),
        (Budget(most=1, of_floor=1.4), "≤ 1, ≤ 1.40 times floor"),
    ],
)
def test_a_promise_can_be_read(budget, text):
    assert str(budget) == text


def test_what_is_shown_beside_another_figure_gets_no_line_of_its_own():
    grid = Grid("g", ("one", "two"), (("row", ("x", "y")),))
    made = report(*map(figure, ("a", "a_floor", "x", "y", "b_floor"), (1.0,) * 5), grids=(grid,))
    assert [each.key for each in made.rows()] == ["a", "b_floor"]


def test_a_grid_shows_its_figures_and_the_promise_of_the_first():
    grid = Grid("g", ("one", "two", "three"), (("row", ("x", "y", "missing")),))
    made = report(
        figure("x", 2.0, budget=Budget(most=1)), figure("y", 1.0, 3.0, 1234.5), grids=(grid,)
    )
    assert table.grid_cells(made, grid) == [
        ("row", "2 ms", "3 (1 - 1,234) ms", "", "≤ 1", "no"),
    ]
    text = table.markdown(made, machine="m", command="c")
    assert "| g | one | two | three | budget | within budget |" in text
    assert "| --- | --: | --: | --: | --- | --- |" in text


def test_a_page_has_no_column_and_no_table_of_nothing():
    grid = Grid("g", ("one",), (("row", ("x",)),))
    made = report(figure("x", 2.0), grids=(grid,))
    assert table.markdown(made, machine="m", command="c").splitlines()[2:6] == [
        "| g | one |",
        "| --- | --: |",
        "| row | 2 ms |",
        "",
    ]
    assert "| key |" not in table.markdown(made, machine="m", command="c")


def test_the_page_gets_the_text_and_the_picture_and_keeps_the_rest(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- b: begin -->\nold\n<!-- b: end -->\nz\n")
    docs.write("b", "new\n", page, b"png")
    assert page.read_text() == "a\n<!-- b: begin -->\nnew\n<!-- b: end -->\nz\n"
    assert (tmp_path / "b.png").read_bytes() == b"png"


def test_a_page_without_a_place_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- b: begin -->\n")
    with pytest.raises(ConfigError, match="no place marked for b"):
        docs.write("b", "new\n", page)
