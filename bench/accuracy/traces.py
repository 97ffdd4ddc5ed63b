"""Replays traces in virtual time, once with text and once with token ids."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.accuracy import lmcache, mooncake
from bench.accuracy.baselines import Cache, baselines
from bench.accuracy.errors import Errors, errors
from bench.accuracy.figures import Part, counted, grid, scored
from bench.accuracy.replay import BLOCK, Known, Replay
from bench.accuracy.trace import Trace
from bench.progress import Progress
from epp.errors import ConfigError

QUICK_REQUESTS = 400
READERS: dict[str, Callable[[Path, int | None], Trace]] = {
    mooncake.NAME: mooncake.read,
    lmcache.NAME: lmcache.read,
}
KNOWN: tuple[Known, ...] = ("text", "tokens")
_CONVERSATION = f"{mooncake.PODS} pods of {mooncake.BLOCKS:,} blocks"
_AGENT = f"{lmcache.PODS} pods of {lmcache.BLOCKS:,}"
NOTE = (
    "Traces are replayed in virtual time, in one process: the product's fleet and policy in front"
    f" of the simulator's scheduler. `conversation` is Mooncake's ({_CONVERSATION} of 16 tokens),"
    f" `agent` LMCache's ({_AGENT})."
)


def replayed(progress: Progress, place: Path, *, quick: bool) -> Iterator[Part]:
    """Replay the trace at `place`, or all known ones in that folder. Raises `ConfigError`."""
    for trace in traces_at(place, quick=quick):
        scores: defaultdict[str, list[Errors]] = defaultdict(list)
        for known in KNOWN:
            progress.step(f"{trace.name}: {len(trace.calls)} requests, {known}")
            beside = baselines(Cache(trace.blocks - 1, BLOCK))
            replay = Replay(trace, known, beside=beside)
            replay.run()
            for name, guesses in replay.guesses.items():
                scores[name].append(errors(guesses, BLOCK))
        suffix = f"_{trace.name}"
        figures = (*scored(scores, suffix), *counted(scores, suffix))
        yield Part(figures, grid(trace.name, scores, suffix))


def traces_at(place: Path, *, quick: bool) -> Iterator[Trace]:
    """Read the trace at `place`, or all known ones in that folder. Raises `ConfigError`."""
    for path in _files(place):
        yield READERS[path.name](path, QUICK_REQUESTS if quick else None)


def _files(place: Path) -> list[Path]:
    files = [place / name for name in READERS] if place.is_dir() else [place]
    found = [file for file in files if file.name in READERS and file.exists()]
    if not found:
        raise ConfigError(f"{place} holds no trace that is known: {', '.join(READERS)}")
    return found
