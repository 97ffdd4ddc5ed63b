"""Where things are: the size of modules and packages, one name for one thing, and the layers."""

import ast
import re
import tomllib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import epp

PACKAGE = Path(epp.__file__).parent
ROOT = PACKAGE.parent
MAX_LINES = 400
FEWEST_LINES = 40
"""Of a module that has one importer: a shorter one belongs into that importer."""
MAX_MODULES = 15
"""In one package, its `__init__` not counted."""


def dotted(path):
    """The name by which a module is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py")) if "_pb" not in path.parts}
LINES = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}


@cache
def trees():
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imported(tree):
    """The modules of `epp` that a module imports, wherever in it the statement stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in MODULES)
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for each in node.names:
                full = f"{node.module}.{each.name}"
                yield full if full in MODULES else node.module


def importers():
    found = defaultdict[str, set[str]](set)
    for name, tree in trees().items():
        for other in imported(tree):
            found[other] |= {name} - {other}
    return found


def test_modules_stay_small():
    assert {name: lines for name, lines in LINES.items() if lines > MAX_LINES} == {}


def test_a_short_module_has_more_than_one_importer():
    # A module with Cython beside it is the contract of what it compiles to, however short.
    crumbs = {
        name: found
        for name, found in importers().items()
        if name in MODULES
        and MODULES[name].stem not in {"__init__", "__main__"}
        and LINES[name] < FEWEST_LINES
        and not MODULES[name].with_suffix(".pyx").exists()
        and len(found) == 1
    }
    assert crumbs == {}


def test_no_class_name_is_public_twice():
    places = defaultdict(list)
    for module, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_packages_stay_small():
    paths = [path for path in MODULES.values() if path.stem != "__init__"]
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in paths)
    assert {name: count for name, count in counts.items() if count > MAX_MODULES} == {}


def split(layer):
    """The modules of one layer, which may not import each other."""
    return {each.strip() for each in layer.strip(" {}").split("|")}


def test_the_architecture_page_shows_the_layers_that_are_checked():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    checked = [each["layers"] for each in contracts if each["type"] == "layers"]
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = re.findall(r"^```\n([a-z_]+ -> .*)\n```$", page, re.MULTILINE)
    assert [[split(each) for each in line.split("->")] for line in shown] == [
        [split(each) for each in layers] for layers in checked
    ]
