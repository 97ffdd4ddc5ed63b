"""The modules that are compiled as they stand: what may be one, and when they are used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from epp import compiled

ROOT = Path(compiled.__file__).parent.parent
SAY = (
    "import epp.compiled, epp.policy.scheduler as s; print(epp.compiled.FAULT, s.__file__, sep='|')"
)


def test_they_are_listed_in_order_and_exist():
    assert list(compiled.MODULES) == sorted(set(compiled.MODULES))
    assert all((ROOT / compiled.path_of(module)).is_file() for module in compiled.MODULES)


@pytest.mark.parametrize("module", compiled.MODULES)
def test_none_defines_a_struct(module):
    tree = ast.parse((ROOT / compiled.path_of(module)).read_text(encoding="utf-8"))
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


@pytest.fixture
def package(tmp_path):
    """Give a folder with the sources that `epp.compiled` looks at, and what it says of them."""
    for module in ("epp.__init__", "epp.compiled", *compiled.MODULES):
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


def test_they_are_used_as_long_as_no_source_has_changed(package):
    folder, fault = package
    assert fault() == "not built"
    (folder / "epp" / compiled.RECORD).write_text(compiled.record(folder))
    assert fault() == ""
    assert fault(WARMPICK_NATIVE="off") == "turned off by WARMPICK_NATIVE=off"
    source = folder / "epp/model/fleet.py"
    source.write_text(source.read_text() + "# another\n")
    assert fault() == "epp/model/fleet.py has changed since they were built"


def test_turned_off_their_sources_are_run():
    said = subprocess.run(
        [sys.executable, "-c", SAY],
        env={"PYTHONPATH": str(ROOT), "WARMPICK_NATIVE": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    fault, path = said.stdout.strip().split("|")
    assert fault == "turned off by WARMPICK_NATIVE=off"
    assert path == str(ROOT / "epp/policy/scheduler.py")
