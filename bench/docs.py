"""Refreshes the tables of the documentation, so that no figure there is typed by hand."""

from pathlib import Path

from epp.errors import ConfigError

_BEGIN = "<!-- %s: begin -->"
DOCS = Path(__file__).parent.parent / "docs"
PAGES = tuple(DOCS / f"{name}.md" for name in ("performance", "accuracy-study", "holding-study"))


def page_of(name: str) -> Path | None:
    """Return the page with markers for the table of benchmark `name`, None if none has them."""
    pages = (page for page in PAGES if _BEGIN % name in page.read_text(encoding="utf-8"))
    return next(pages, None)


def write(name: str, text: str, page: Path, picture: bytes = b"") -> None:
    """Put `text` between the markers of benchmark `name`, and its picture beside the page.

    Raises `ConfigError` without markers.
    """
    begin, end = _BEGIN % name, f"<!-- {name}: end -->"
    before, mark, rest = page.read_text(encoding="utf-8").partition(begin)
    _, end_mark, after = rest.partition(end)
    if not mark or not end_mark:
        raise ConfigError(f"{page.name} has no place marked for {name}")
    page.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")
    if picture:
        page.with_name(f"{name}.png").write_bytes(picture)
