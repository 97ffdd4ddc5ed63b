"""The trees that are played: this one, and other commits, built in work trees of git."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.child import MeasurementFailed

ROOT = Path(__file__).resolve().parents[2]
_BUILT = ROOT / ".cache" / "against"


def built(ref: str) -> Path:
    """Return a work tree of a commit, compiled; it is kept. Raises `MeasurementFailed`."""
    found = _run(("git", "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"), ROOT, f"{ref}?")
    tree = _BUILT / found.strip()[:12]
    if not tree.exists():
        _run(("git", "worktree", "add", "--detach", str(tree), ref), ROOT, "no work tree")
    if not any(tree.glob("*.so")):
        compiling = (sys.executable, "setup.py", "-q", "build_ext", "--inplace")
        _run(compiling, tree, f"{ref} does not compile", WARMPICK_NATIVE="require")
    return tree


def prepare(tree: Path, folder: Path) -> Path:
    """Make a folder from which the product of a tree is played by the benchmark of this one."""
    folder.mkdir()
    for target in (*_product(tree), ROOT / "bench"):
        (folder / target.name).symlink_to(target)
    return folder


def _product(tree: Path) -> Iterable[Path]:
    yield tree / "epp"
    yield from tree.glob("*.so")


def _run(command: tuple[str, ...], folder: Path, fault: str, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise MeasurementFailed(f"{fault}: {done.stderr.strip()[-2000:] or ' '.join(command)}")
    return done.stdout
