"""The page of a report: self-contained HTML, in the reader's light or dark colours."""

import html
from collections.abc import Iterable, Sequence
from importlib.resources import files
from string import Template


def page(brand: str, title: str, package: str, **parts: object) -> str:
    """Return a page whose body is the `report.html` of a package with its parts, all of it HTML."""
    body = _template(package, "report.html").substitute(parts)
    frame = _template("epp.replay.results", "page.html")
    return frame.substitute(brand=brand, title=html.escape(title), body=body)


def _template(package: str, name: str) -> Template:
    return Template((files(package) / name).read_text(encoding="utf-8"))


def tile(name: str, value: str, was: str) -> str:
    """Return a figure in large print, with its comparison below it."""
    lines = zip(("name", "value", "was"), (name, value, was), strict=True)
    parts = (f'<div class="{kind}">{html.escape(text)}</div>' for kind, text in lines)
    return f'<div class="tile">{"".join(parts)}</div>'


def table(headings: Sequence[str], rows: Iterable[str]) -> str:
    """Return a table whose rows each begin with a heading."""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in ("", *headings))
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
