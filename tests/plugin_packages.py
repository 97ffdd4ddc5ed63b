"""Packages with plug-ins, as pip would install them."""

import sys
from collections.abc import Mapping


def install(folder, monkeypatch, module: str, text: str, points: Mapping[str, str]) -> None:
    """Install a module whose classes are plug-ins, by the names of `points`, until a test ends."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {target}\n" for name, target in points.items()]
    (info / "entry_points.txt").write_text("".join(["[warmpick.plugins]\n", *lines]))
    (folder / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
