"""One play of a tree, timed or counted."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.child import MeasurementFailed
from bench.exchange.callgrind import ENVIRONMENT, between_marks, counting, read
from bench.exchange.parts import Cost, cost_of
from bench.exchange.plan import play
from bench.exchange.play import Play, Took
from bench.replicas.counted import FIGURES

START = "start"
_PATHS = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")


class Stage:
    """A folder in which a play is written, played and counted (`plan.play`)."""

    def __init__(self, folder: Path, number: int, classes: int = 0) -> None:
        self._folder = folder
        self._classes = classes
        self._play: Play = play(folder, number, classes)
        self._parts = {each.name: each.parts for each in self._play.phases if each.parts}
        (folder / "play").write_bytes(msgspec.msgpack.encode(self._play))

    async def times(self, tree: Path) -> dict[str, float]:
        """Play a prepared tree; return seconds of CPU for one of each figure."""
        took = await self._run(tree, ())
        return {each.name: each.seconds / self._parts[each.name] for each in took}

    async def costs(self, tree: Path) -> dict[str, Cost]:
        """Play a prepared tree under callgrind; return what one of each figure costs."""
        out = self._folder / "callgrind"
        for path in self._folder.glob("callgrind*"):
            path.unlink()
        took = await self._run(tree, counting(out))
        # Up to the first mark Python starts, up to the second the picker; then between two marks
        # there is what is not counted, and what is.
        _, start, *others = between_marks(out)
        counted = {
            each.name: cost_of(read(path), self._parts[each.name])
            for each, path in zip(took, others[1::2], strict=True)
        }
        return {START: cost_of(read(start), 1)} | counted

    async def between_replicas(self, tree: Path) -> dict[str, Cost]:
        """Count what a request costs replicas that tell each other (`bench.replicas.counted`)."""
        out = self._folder / "replicas"
        await _played(tree, counting(out), "bench.replicas.counted", str(self._classes))
        counted = between_marks(out)[1::2]  # what is not counted comes before each
        return {
            name: cost_of(read(path), number)
            for (name, number), path in zip(FIGURES.items(), counted, strict=True)
        }

    async def _run(self, tree: Path, before: Sequence[str]) -> list[Took]:
        saw = self._folder / "took"
        saw.unlink(missing_ok=True)
        play = str(self._folder / "play")
        said = await _played(tree, before, "bench.exchange.player", play, str(saw))
        if not saw.exists():
            raise MeasurementFailed(f"the picker ended before all was played: {said}")
        return msgspec.json.decode(saw.read_bytes(), type=list[Took])


async def _played(tree: Path, before: Sequence[str], *arguments: str) -> str:
    """Run a module with the product of a tree; return the end of its log.

    Raises `MeasurementFailed` if it fails.
    """
    child = await asyncio.create_subprocess_exec(
        *(*before, sys.executable, "-m", *arguments),
        cwd=tree,
        env={name: os.environ[name] for name in _PATHS if name in os.environ}
        | ENVIRONMENT
        | {"PYTHONPATH": str(tree)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, log = await child.communicate()
    said = log.decode()[-2000:]
    if child.returncode:
        raise MeasurementFailed(f"the picker was not played: {said}")
    return said
