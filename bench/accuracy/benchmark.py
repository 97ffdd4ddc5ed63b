"""Runs the measurements of `accuracy` one after another and says what it is at."""

import tempfile
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from model_server.engine import is_installed

from bench.accuracy import picture
from bench.accuracy.baselines import Cache, baselines, own, retold
from bench.accuracy.client import Player
from bench.accuracy.engines import BLOCK, BLOCKS, ENGINES, MODEL, Engine, EngineName
from bench.accuracy.errors import Errors, errors
from bench.accuracy.figures import Part, counted, grid, noticed, scored
from bench.accuracy.gateway import gateway
from bench.accuracy.identities import Identity, chosen
from bench.accuracy.lru import Blocks
from bench.accuracy.observation import Guess, Observation
from bench.accuracy.restart import noticed_after, reset, restart
from bench.accuracy.sampling import NOTES as SAMPLING_NOTES
from bench.accuracy.sampling import sampled_servers, sampled_traces
from bench.accuracy.servers import Servers, running
from bench.accuracy.traces import NOTE as TRACES_NOTE
from bench.accuracy.traces import replayed
from bench.accuracy.workload import Shape, Workload
from bench.figures import Figure, Report
from bench.options import Options
from bench.progress import Progress
from epp.errors import ConfigError

CACHE = Cache(BLOCKS - 1, BLOCK)
NOTES = (
    "Errors are in per cent of all prompt tokens, the last column in per cent of the requests.",
    "Every predictor is asked before the same routed requests, in the order of sending.",
    "The truth is the `cached_tokens` of each response's usage; aborted requests have none.",
)

NOTICES = {
    "reset": "wrong predictions after a server silently lost its cache",
    "restart": "wrong predictions after a server was killed and started again",
}


class Effort(msgspec.Struct, frozen=True):
    """`requests` an identity and round; a round has a seed of its own, and this many at a time."""

    requests: int
    concurrency: tuple[int, ...]


QUICK = Effort(110, (4,))
FULL = Effort(400, (3, 4, 6))


class _Results:
    """What the runs gave: guesses and errors by predictor."""

    def __init__(self) -> None:
        self.guesses: defaultdict[str, list[Guess]] = defaultdict(list)
        self.scores: defaultdict[str, list[Errors]] = defaultdict(list)
        self.notices: defaultdict[str, list[int]] = defaultdict(list)
        self.records: list[Mapping[str, object]] = []

    def add(self, name: str, guesses: Sequence[Guess]) -> None:
        self.guesses[name] += guesses
        self.scores[name].append(errors(guesses, BLOCK))

    def keep(self, identity: Identity, workload: Workload, seen: Sequence[Observation]) -> None:
        place = {"identity": identity, "seed": workload.seed}
        self.records += [place | msgspec.to_builtins(each) for each in seen]


async def measure(progress: Progress, options: Options) -> Report:
    """Measure everything. Raises `Refused` where a request was not answered."""
    engine = options.engine or ("vllm" if is_installed() else "simulator")
    parts = []
    if options.observe:
        return await _sampled(engine, progress, options)
    if engine != "none":
        parts.append(await _served(ENGINES[engine], progress, options))
    if options.traces:
        parts += replayed(progress, options.traces, quick=options.quick)
    if not parts:
        raise ConfigError("without servers and without a trace there is nothing to measure")
    return Report(
        name="accuracy",
        figures=tuple(figure for part in parts for figure in part.figures),
        notes=(*NOTES, TRACES_NOTE) if options.traces else NOTES,
        grids=tuple(part.grid for part in parts),
        picture=b"".join(part.picture for part in parts),
    )


async def _sampled(
    engine: EngineName | Literal["none"], progress: Progress, options: Options
) -> Report:
    """Measure what it costs to observe fewer responses, on a trace or else on servers."""
    notes: tuple[str, ...] = SAMPLING_NOTES
    if engine != "none":
        effort = QUICK if options.quick else FULL
        rounds = [Shape(requests=effort.requests, concurrency=n) for n in effort.concurrency]
        parts = [await sampled_servers(ENGINES[engine], rounds, progress, options)]
    elif options.traces is not None:
        parts = list(sampled_traces(progress, options.traces, options))
        notes = (SAMPLING_NOTES[0], TRACES_NOTE)
    else:
        raise ConfigError("without servers and without a trace there is nothing to measure")
    return Report(
        name="accuracy",
        figures=tuple(figure for part in parts for figure in part.figures),
        notes=notes,
        grids=tuple(part.grid for part in parts),
    )


async def _served(engine: Engine, progress: Progress, options: Options) -> Part:
    """Play against servers, every identity in every round."""
    results, effort = _Results(), QUICK if options.quick else FULL
    identities = chosen(engine.name, options.identities)
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        progress.step(f"two servers: {engine.name}")
        async with running(engine, Path(name)) as servers:
            for turn, concurrency in enumerate(effort.concurrency):
                workload = Workload(Shape(requests=effort.requests, concurrency=concurrency), turn)
                for identity in identities:
                    progress.step(f"{identity}, {concurrency} at a time")
                    # A server that starts again takes its time: once, at the very end.
                    last = (turn, identity) == (len(effort.concurrency) - 1, identities[-1])
                    await _play(servers, identity, workload, results, restarts=last)
    if options.records:
        options.records.write_bytes(msgspec.json.encode(results.records))
    return _part(results, engine.title)


async def _play(
    servers: Servers, identity: Identity, workload: Workload, results: _Results, *, restarts: bool
) -> None:
    """Play a workload on servers that hold nothing, with a picker that knows nothing."""
    await servers.reset(servers.ports)
    async with gateway(servers, identity) as url:
        player = Player(url, MODEL, servers.engine.words())
        seen = await player.play(workload)
        ids = await servers.tokenize(each.messages for each in seen)
        results.notices["reset"].append(await noticed_after(player, servers, reset))
        if restarts:
            results.notices["restart"].append(await noticed_after(player, servers, restart))
    results.keep(identity, workload, seen)
    results.add(identity, own(seen))
    prompts = [Blocks(array("I", each)) for each in ids]
    for name, of in baselines(CACHE).items():
        results.add(name, retold(seen, prompts, of))


def _part(results: _Results, title: str) -> Part:
    scores = results.scores
    figures = (*scored(scores), *counted(scores), *_noticed(results))
    return Part(figures, grid(title, scores), picture.draw(results.guesses, BLOCK))


def _noticed(results: _Results) -> tuple[Figure, ...]:
    return tuple(
        noticed(f"{name}_noticed_after", says, results.notices[name])
        for name, says in NOTICES.items()
    )
