"""What becomes of tests that need vLLM where it is not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.fixture
def server():
    raise AssertionError("fixtures start vLLM")

@pytest.mark.vllm
def test_with_vllm(server):
    pass

def test_without():
    pass
"""
# None in sys.modules is how Python marks a module that cannot be imported.
PROGRAM = (
    "import sys; sys.modules['vllm'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
)


@pytest.mark.parametrize(
    ("demanded", "status", "outcome"),
    [("", 0, "1 passed, 1 skipped"), ("1", 1, "1 passed, 1 error")],
)
def test_it_is_skipped_loudly_or_fails(tmp_path, demanded, status, outcome):
    (tmp_path / "conftest.py").write_text("from tests.needs_vllm import pytest_runtest_setup\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    flags = ["-q", f"-c{ROOT / 'pyproject.toml'}", f"--rootdir={tmp_path}", "-pno:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *flags, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "WARMPICK_REQUIRE_VLLM": demanded},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert outcome in done.stdout
    assert "make vllm" in done.stdout
    assert ("NOT TESTED: test_with_vllm" in done.stdout) == (status == 0)
