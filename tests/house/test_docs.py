"""The documents keep up with the code: every plug-in is described, every example loads."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from epp.config.catalogue import PLUGINS
from epp.config.file import POLICIES, load
from epp.config.schema import API_VERSION, OLD_API_VERSIONS
from epp.errors import Overloaded

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "config.md", *sorted((ROOT / "docs" / "plugins").glob("*.md"))]
CONFIG = "\n##\n".join(page.read_text() for page in PAGES)
SECTION = re.compile(r"^### (`[\w-]+`(?:, `[\w-]+`)*)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```ya?ml\n(.*?)^```", re.MULTILINE | re.DOTALL)
REASON = re.compile(r'\b(?:default_)?reason(?:: ClassVar\[str\])? ?= ?"([a-z-]+)"')
SECTIONS = {
    name: text for names, text in SECTION.findall(CONFIG) for name in re.findall(r"`(.*?)`", names)
}
EXAMPLES = [
    pytest.param(block, id=f"{path.name}:{number}")
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    if path.name != "write-a-plugin.md"  # tests/docs/test_plugin_page.py has its plug-in
    for number, block in enumerate(BLOCK.findall(path.read_text()))
    if "\nkind: EndpointPickerConfig\n" in f"\n{block}"
]


def test_every_plug_in_has_a_section_and_no_section_is_of_none():
    assert SECTIONS.keys() == PLUGINS.keys()


def said(value):
    if value is msgspec.NODEFAULT:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, bool | str | dict):
        return f"`{msgspec.json.encode(value).decode()}`"
    return f"{value:g}" if isinstance(value, float) else str(value)


def parameters(kind, prefix=""):
    """Every parameter with its default; those of a group under the group's name."""
    for field in msgspec.structs.fields(kind):
        name, value = prefix + field.encode_name, field.default
        if field.default_factory is not msgspec.NODEFAULT:
            value = field.default_factory()
        group = next((each for each in (field.type, *get_args(field.type)) if is_group(each)), None)
        if group is None or value is None:
            yield name, said(value)
        if group is not None:
            yield from parameters(group, f"{name}.")


def is_group(kind):
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@pytest.mark.parametrize("name", PLUGINS)
def test_every_parameter_is_there_with_its_default(name):
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", SECTIONS[name], re.MULTILINE)
    fields = list(parameters(PLUGINS[name]))
    assert rows == fields
    assert bool(fields) != ("No parameters" in SECTIONS[name])


def test_everything_else_that_has_a_name_is_named():
    words = [API_VERSION, *OLD_API_VERSIONS, *POLICIES]
    assert [word for word in words if f"`{word}`" not in CONFIG] == []


def test_every_reason_of_an_error_is_explained():
    page = (ROOT / "docs" / "troubleshoot.md").read_text()
    reasons = {
        reason
        for path in (ROOT / "epp").rglob("*.py")
        for reason in REASON.findall(path.read_text())
    } - {Overloaded.default_reason}  # those who raise it name their own
    assert len(reasons) > 20
    assert {reason for reason in reasons if f"`{reason}`" not in page} == set()


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_load(text):
    assert load(text).profile.picker is not None


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_that_are_ours_are_not_deprecated(text):
    if "conformance-profile" not in text:  # the conformance suite's own file
        assert [each for each in load(text).warnings if "deprecated" in each] == []


def test_the_words_of_the_house_fit_on_a_page():
    page = (ROOT / "docs" / "architecture.md").read_text()
    (glossary,) = re.findall(r"^## Glossary\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert 0 < len(glossary.strip().splitlines()) <= 40
