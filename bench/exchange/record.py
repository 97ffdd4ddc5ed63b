"""Plays once to the picker that is installed, so that its compiled code records what it does.

python -m bench.exchange.record

It writes that down as it ends if it was built with WARMPICK_PROFILE=record (`.ci/profiled-wheel`).
"""

import asyncio
import tempfile
from pathlib import Path

from bench.exchange.plan import NUMBER
from bench.exchange.runs import Stage
from bench.exchange.trees import ROOT
from bench.hold import waiting
from bench.replicas import costs
from epp.adapters.telemetry.logs import configure_logs


def main() -> None:
    """Play requests, then what others tell of theirs, and some that wait."""
    configure_logs("warning", "json")
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        folder, tree = Path(name), Path(name) / "tree"
        tree.mkdir()
        (tree / "bench").symlink_to(ROOT / "bench")
        asyncio.run(Stage(folder, NUMBER).times(tree))
    costs.measure("2k", len)
    asyncio.run(waiting.measure())


if __name__ == "__main__":
    main()
