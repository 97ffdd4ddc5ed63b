"""Where things are: the size of modules, one name for one thing, and the layers."""

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import epp

PACKAGE = Path(epp.__file__).parent
ROOT = PACKAGE.parent
MOST_LINES = 400


def dotted(path):
    """The name by which a module is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py")) if "_pb" not in path.parts}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
LINES = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}


def test_modules_stay_small():
    assert {name: lines for name, lines in LINES.items() if lines > MOST_LINES} == {}


def test_no_class_name_is_public_twice():
    places = defaultdict(list)
    for module, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def split(layer):
    """The modules of one layer, which may not import each other."""
    return {each.strip() for each in layer.strip(" {}").split("|")}


def test_the_architecture_page_shows_the_layers_that_are_checked():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (checked,) = [each["layers"] for each in contracts if each["type"] == "layers"]
    page = (ROOT / "docs" / "architecture.md").read_text()
    (line,) = re.findall(r"^```[a-z]*\n(cli -> .*)\n```$", page, re.MULTILINE)
    assert [split(each) for each in line.split("->")] == [split(each) for each in checked]
