"""The site: everything it shows is in it, and its reference has all that there is to refer to."""

import argparse
import os
import re
import subprocess
import sys

import pytest

from docs.site.pages import MADE, ROOT
from docs.site.reference import families, flags_page, metrics_page
from epp.cli.main import all_parsers
from tests.docs.pages import PAGES
from tests.prometheus import exported

LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?([^\"'\s>]+)")
IN_STYLES = re.compile(r"(?:@import\s*|url\()[\"']?(\w+:)?//")
KINDS = ["Warmpick", "Tutorial", "How to", "Reference", "Explanation"]
NAMED = re.compile(r"`(warmpick_[a-z0-9_]+)(?=[`{])")
FIGURE = re.compile(r"^\| .*?\| ([\d,.]+) \S+(?:,.*?|)\s*\|.*`(\w+)` \|$", re.MULTILINE)
NEAR = 0.25
"""How far a figure may be from the one that was measured last."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # `--quiet` would hide warnings from `--strict` too.
    words = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    settings = ["--config-file", "docs/site/mkdocs.yml"]
    built = subprocess.run(
        [sys.executable, *words, *settings],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr  # with links that lead nowhere
    return folder


def test_a_page_loads_nothing_from_elsewhere(site):
    pages = [*site.rglob("*.html")]
    loaded = {target for page in pages for target in LOADED.findall(page.read_text())}
    assert len(pages) > len(PAGES)
    assert [each for each in loaded if re.match(r"(\w+:)?//", each)] == []
    styles = [path for path in site.rglob("*.css") if IN_STYLES.search(path.read_text())]
    assert styles == []


def test_every_page_is_on_the_site_in_the_place_that_it_has_here(site):
    names = [re.sub(r"README\.md$", "index.md", name) for name in (*PAGES, *MADE)]
    built = [(site / name).with_suffix(".html") for name in names]
    assert [path for path in built if not path.is_file()] == []


def test_pages_are_sorted_by_kind(site):
    tabs = re.search(
        r'<ul class="md-tabs__list">(.*?)</ul>', (site / "index.html").read_text(), re.DOTALL
    )
    assert tabs
    assert [each.strip() for each in re.findall(r"<a [^>]*>([^<]*)</a>", tabs[1])] == KINDS


def flags(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from flags(below)
        elif action.help != argparse.SUPPRESS:
            yield from action.option_strings


def test_the_reference_has_every_flag_of_every_command():
    page = flags_page()
    for name, parser in all_parsers().items():
        (section,) = re.findall(
            rf"^## `{name}`\n(.*?)(?=^## `(?!{name} )|\Z)", page, re.MULTILINE | re.DOTALL
        )
        shown = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", section))
        assert {*flags(parser)} - {"-h", "--help"} <= shown


def test_the_reference_has_every_metric():
    page = metrics_page()
    assert [each.name for each in families() if f"| `{each.name}` |" not in page] == []
    assert len(families()) > 80


def test_every_metric_of_ours_that_a_page_names_is_exported():
    names = {*exported(), *(each.name for each in families())}
    names |= {each.alias.name for each in families() if each.alias is not None}
    named = {(page, name) for page, text in PAGES.items() for name in NAMED.findall(text)}
    assert sorted((page, name) for page, name in named if name not in names) == []


def test_sizes_are_near_what_was_measured_last():
    tables = PAGES["docs/performance.md"] + PAGES["docs/holding-study.md"]
    measured = dict(re.findall(r"^\| `(\w+)` \| .*? \| ([\d,.]+)", tables, re.MULTILINE))
    sizes, summary = (
        FIGURE.findall(PAGES[f"docs/{name}.md"]) for name in ("sizing", "performance")
    )
    assert len(sizes) > 12
    assert len(summary) > 10
    told = sizes + summary
    for figure, key in told:
        last = float(measured[key].replace(",", ""))
        assert float(figure.replace(",", "")) == pytest.approx(last, rel=NEAR), key
