"""Decisions have one form: a number, a title, a status and sections; the index lists them all."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "adr"
INDEX = (FOLDER / "README.md").read_text()
PAGES = sorted(FOLDER.glob("0*.md"))
ROWS = dict(re.findall(r"^\| (\[\d{4}\]\(\S+\)) \| (.*) \| .* \|$", INDEX, re.MULTILINE))
LINK = r"\[(\d{4})\]\((\S+?)\)"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_has_a_title_a_status_and_a_row(page):
    number = page.name[:4]
    text = page.read_text()
    found = re.match(rf"# {number}: (.*)\n\nStatus: accepted(?:; replaced in part by |\.)", text)
    assert found
    assert ROWS[f"[{number}]({page.name})"] == found[1]
    assert re.search(r"^## Decision$|^## The rule$", text, re.MULTILINE)


def successors(text):
    return set(re.findall(LINK, text.partition("replaced in part by")[2]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_replaces_a_decision_says_so(page):
    status = page.read_text().partition("Status: ")[2].partition("\n\n")[0]
    replaced, _, replaces = status.partition("Replaces")
    (row,) = re.findall(rf"^\| \[{page.name[:4]}\].*$", INDEX, re.MULTILINE)
    assert successors(replaced) == successors(row)
    for _, name in re.findall(LINK, replaces):
        assert page.name in (FOLDER / name).read_text()


def test_the_index_lists_nothing_else():
    assert len(ROWS) == len(PAGES)
