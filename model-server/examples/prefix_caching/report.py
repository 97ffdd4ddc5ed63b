"""Questions and answers as tables for people."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from asking import Asked, Setting
from prediction import Foretold, Predicted
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def show(console: Console, title: str, asked: Sequence[Asked], predicted: Predicted) -> None:
    """Print a row for each question under each setting, and one with the means of each setting."""
    console.print(f"[bold]{title}[/bold]")
    settings = list(dict.fromkeys(each.setting for each in asked))
    for setting in settings:
        rows = [each for each in asked if each.setting == setting]
        console.print(_questions(setting, rows, predicted))
    console.print(_means(settings, asked, predicted))


def _table(title: str, *headings: str) -> Table:
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        made.add_column(heading, justify="right")
    return made


def _questions(setting: Setting, rows: Sequence[Asked], predicted: Predicted) -> Table:
    made = _table(
        str(setting),
        *("reader", "question", "server", "prompt", "cached", "picker said", "TTFT", "total"),
        *("replay: cached", "TTFT"),
    )
    servers = dict(zip(sorted({each.server for each in rows if each.server}), "ab", strict=False))
    for each in sorted(rows, key=lambda each: (each.question, each.reader)):
        foretold = _foretold(each, predicted)
        made.add_row(
            *(str(each.reader), str(each.question), servers.get(each.server, "a")),
            *(str(len(each.prompt)), str(each.cached)),
            "" if each.predicted is None else str(each.predicted),
            *(_seconds(each.ttft), _seconds(each.seconds)),
            *(str(foretold.cached), _seconds(foretold.ttft)),
        )
    return made


def _means(settings: Sequence[Setting], asked: Sequence[Asked], predicted: Predicted) -> Table:
    made = _table(
        "means",
        *("setting", "first TTFT", "later TTFT", "total", "cached"),
        *("replay: first", "later", "cached"),
    )
    made.columns[0].justify, made.columns[0].no_wrap = "left", True
    for setting in settings:
        rows = [each for each in asked if each.setting == setting]
        prompt = sum(len(each.prompt) for each in rows)
        first = [each for each in rows if each.question == 1]
        later = [each for each in rows if each.question > 1]
        foretold = [_foretold(each, predicted) for each in rows]
        made.add_row(
            *(str(setting), _mean(each.ttft for each in first)),
            *(_mean(each.ttft for each in later), _mean(each.seconds for each in rows)),
            f"{sum(each.cached for each in rows) / prompt:.0%}",
            _mean(_foretold(each, predicted).ttft for each in first),
            _mean(_foretold(each, predicted).ttft for each in later),
            f"{sum(each.cached for each in foretold) / prompt:.0%}",
        )
    return made


def _foretold(asked: Asked, predicted: Predicted) -> Foretold:
    return predicted[asked.setting, asked.reader, asked.question]


def _mean(times: Iterable[float]) -> str:
    values = list(times)
    return _seconds(fmean(values)) if values else ""


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.2f} s"
