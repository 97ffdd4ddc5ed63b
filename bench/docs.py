"""Refreshes the tables of docs/performance.md, so that no figure there is typed by hand."""

from pathlib import Path

from epp.errors import ConfigError

_BEGIN = "<!-- %s: begin -->"
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def has_place(name: str, page: Path = PAGE) -> bool:
    """Return whether there are markers for the table of benchmark `name`."""
    return _BEGIN % name in page.read_text(encoding="utf-8")


def write(name: str, text: str, picture: bytes = b"", page: Path = PAGE) -> None:
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
