"""The answers of `docs/architecture.md`: every file that it names is there, every name in it."""

import re
from pathlib import Path

import pytest

import epp

PACKAGE = Path(epp.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "architecture.md").read_text()
(TABLE,) = re.findall(r"^## Where is ...\?\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
ROWS = re.findall(r"^\| (.*?\?) \| (.*) \|$", TABLE, re.MULTILINE)
SOURCES = (".py", ".pyx", ".pxd", ".pxi")
MAX_WORDS = 40


def test_every_row_is_a_question_with_an_answer():
    lines = [line for line in TABLE.splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(lines) - 1  # its head


@pytest.mark.parametrize("answer", [pytest.param(row[1], id=row[0]) for row in ROWS])
def test_every_name_is_in_the_file_before_it(answer):
    """A row has files, each with what is to be found in it; folders to come end with a slash."""
    source = ""
    for named in re.findall(r"`([^`]+)`", answer):
        if named.endswith(SOURCES):
            found = [path for path in PACKAGE.rglob(named.split("/")[-1]) if path.match(named)]
            assert found, named
            source = found[0].read_text()
        elif not named.endswith("/") and named != "PendingDecision":
            kind, _, member = named.rpartition(".")
            assert f"class {kind}" in source or not kind, named
            begun = r"(def |class |^|^cdef .*?\b)"
            assert re.search(rf"{begun}{member}\b", source, re.MULTILINE), named


def test_the_glossary_is_short():
    (glossary,) = re.findall(r"^## Glossary\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert len([line for line in glossary.splitlines() if line.strip()]) <= MAX_WORDS
