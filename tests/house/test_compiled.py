"""Which modules are compiled: what may be one, and when an extension is taken."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from epp import compiled
from tests.native.built import FAULTS, loaded

ROOT = Path(compiled.__file__).parent.parent
BY_MYPYC = [module for module, by in compiled.MODULES.items() if by == "mypyc"]
BY_CYTHON = [module for module, by in compiled.MODULES.items() if by == "cython"]
PROBE = """
import epp.compiled, epp.policy.scheduler as s
print(epp.compiled.summary(), epp.compiled.FAULT, s.__file__, sep="|")
import epp.adapters.extproc.http2.session
"""


def test_they_are_listed_in_order():
    assert list(compiled.MODULES) == sorted(compiled.MODULES)


@pytest.mark.parametrize("module", compiled.MODULES)
def test_each_has_its_source_and_what_it_promises(module):
    if compiled.MODULES[module] == "mypyc":
        assert (ROOT / compiled.path_of(module)).is_file()
    else:
        assert (ROOT / compiled.cython_source_of(ROOT, module)).is_file()
        assert any((ROOT / compiled.path_of(module, each)).is_file() for each in (".py", ".pyi"))


def test_what_cython_can_compile_is_listed():
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "epp").rglob("*.pyx")}
    assert found == {compiled.cython_source_of(ROOT, module) for module in BY_CYTHON}


@cache
def tree_of(module):
    return ast.parse((ROOT / compiled.path_of(module)).read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", BY_MYPYC)
def test_none_that_mypyc_compiles_defines_a_struct(module):
    tree = tree_of(module)
    told = [
        node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.keywords
    ]
    bases = {
        ast.unparse(base)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
    assert not told
    assert not {base for base in bases if "Struct" in base}


@pytest.mark.parametrize("module", BY_MYPYC)
def test_none_that_mypyc_compiles_waits_while_an_error_is_handled(module):
    """It would leave the error as handled in its thread, and the context of all later ones."""
    tree = tree_of(module)
    handling = [
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for part in (*node.handlers, *node.finalbody)
    ]
    waits = [each for part in handling for each in ast.walk(part) if isinstance(each, ast.Await)]
    assert not waits
    entered = {
        ast.unparse(item.context_expr).partition("(")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
    }
    assert entered <= {"asyncio.timeout", "self._long_page"}, "is its exit known not to wait?"


@pytest.mark.parametrize("module", sorted(set(BY_CYTHON).difference(FAULTS)))
def test_an_extension_has_what_its_source_defines(module):
    if not (ROOT / compiled.path_of(module)).exists():
        return
    extension, source = loaded(module)
    own = {source.__name__, module}
    defined = {
        name
        for name, value in vars(source).items()
        if not name.startswith("_") and getattr(value, "__module__", None) in own
    }
    assert {name for name in defined if not hasattr(extension, name)} == set()


@pytest.fixture
def package(tmp_path):
    """Give a folder with the modules that `epp.compiled` looks at, and what it says of them."""
    for module in ("epp.__init__", "epp.compiled", *BY_MYPYC):
        place = tmp_path / compiled.path_of(module)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((ROOT / compiled.path_of(module)).read_bytes())

    def fault(**environment):
        said = subprocess.run(
            [sys.executable, "-c", "import epp.compiled; print(epp.compiled.FAULT)"],
            env={"PYTHONPATH": str(tmp_path), **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return said.stdout.strip()

    return tmp_path, fault


def test_extensions_are_taken_as_long_as_no_source_has_changed(package):
    folder, fault = package
    assert fault() == "not built"
    (folder / "epp" / compiled.RECORD).write_text(
        "".join(
            compiled.record_of(folder, module, [compiled.path_of(module)]) for module in BY_MYPYC
        )
    )
    assert fault() == ""
    assert fault(WARMPICK_NATIVE="off") == compiled.OFF
    source = folder / "epp/model/fleet.py"
    source.write_text(source.read_text() + "# another\n")
    assert fault() == "epp/model/fleet.py has changed since it was compiled"


def test_turned_off_sources_run_and_what_has_none_cannot_be_imported():
    said = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=os.environ | {"PYTHONPATH": str(ROOT), "WARMPICK_NATIVE": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.strip().split("|") == [
        f"none: {compiled.OFF}",
        compiled.OFF,
        str(ROOT / "epp/policy/scheduler.py"),
    ]
    assert said.stderr.strip().endswith(f"session needs its extension: {compiled.OFF}")


def test_the_summary_names_what_is_missing():
    said = compiled.summary()
    if compiled.FAULT:
        assert said == f"none: {compiled.FAULT}"
    else:
        assert said.startswith(f"{len(compiled.MODULES) - len(FAULTS)} of {len(compiled.MODULES)}")
        assert all(module in said for module in FAULTS)
