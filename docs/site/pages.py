"""The pages of the site: the repository's own, in their places, and those made from the code."""

from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs.site.reference import flags_page, metrics_page

ROOT = Path(__file__).parents[2]
ELSEWHERE = (
    "README.md",
    "CHANGELOG.md",
    "manifests/*.md",
    "model-server/*.md",
    "model-server/examples/*.md",
)
"""Pages that are not below `docs/`."""
MADE = {"docs/flags.md": flags_page, "docs/metrics.md": metrics_page}
"""Pages that are made from the code whenever the site is built, and what makes them."""


def repository_files() -> Iterator[str]:
    """Yield the paths of all pages and pictures, by name."""
    found = [path for pattern in ELSEWHERE for path in ROOT.glob(pattern)]
    found += [path for path in (ROOT / "docs").rglob("*") if path.suffix in {".md", ".png", ".svg"}]
    yield from (path.relative_to(ROOT).as_posix() for path in sorted(found))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder in the place of each entry of the navigation that is a folder."""
    for section in config.nav or []:
        for entries in section.values():
            if isinstance(entries, list):
                entries[:] = [expanded(each) for each in entries]
    return config


def expanded(entry: str | dict[str, object]) -> str | dict[str, object]:
    """Return an entry of the navigation, `{title: folder/}` with the folder's pages."""
    if isinstance(entry, dict):
        ((title, target),) = entry.items()
        if isinstance(target, str) and target.endswith("/"):
            pages = [each for each in repository_files() if each.startswith(target)]
            return {title: sorted(pages, key=lambda page: (not page.endswith("README.md"), page))}
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, at the places that they have in the repository."""
    for path in repository_files():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for path, make in MADE.items():
        files.append(File.generated(config, path, content=make()))
    return files
