"""The documents keep up with the code: every plug-in is described, every example loads."""

import re
from pathlib import Path

import msgspec
import pytest

from epp.config import API_VERSIONS, POLICIES, load
from epp.policy.registry import BUILT_IN, PLUGINS

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "docs" / "config.md").read_text()
SECTION = re.compile(r"^### `([\w-]+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```ya?ml\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTIONS = dict(SECTION.findall(CONFIG))
EXAMPLES = [
    pytest.param(block, id=f"{path.name}:{number}")
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    for number, block in enumerate(BLOCK.findall(path.read_text()))
    if "\nkind: EndpointPickerConfig\n" in f"\n{block}"
]


def test_every_plug_in_has_a_section_and_no_section_is_of_none():
    assert SECTIONS.keys() == PLUGINS.keys()


def said(value):
    if value is msgspec.NODEFAULT:
        return "required"
    if isinstance(value, bool | str):
        return f"`{msgspec.json.encode(value).decode()}`"
    return f"{value:g}"


@pytest.mark.parametrize("name", PLUGINS)
def test_every_parameter_is_there_with_its_default(name):
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", SECTIONS[name], re.MULTILINE)
    fields = msgspec.structs.fields(PLUGINS[name])
    assert rows == [(field.encode_name, said(field.default)) for field in fields]
    assert bool(fields) != ("No parameters" in SECTIONS[name])


def test_everything_else_that_has_a_name_is_named():
    words = [*BUILT_IN, *API_VERSIONS, *POLICIES]
    assert [word for word in words if f"`{word}`" not in CONFIG] == []


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_load(text):
    assert load(text).profile.picker is not None
