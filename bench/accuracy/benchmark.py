"""Runs the measurements of `accuracy` one after another and says what it is at."""

import tempfile
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from model_server.engine import is_installed

from bench.accuracy import picture
from bench.accuracy.baselines import Cache, baselines, own, retold
from bench.accuracy.client import Player, gateway_client
from bench.accuracy.engines import BLOCK, BLOCKS, ENGINES, MODEL, Engine, Ports
from bench.accuracy.errors import Errors, errors
from bench.accuracy.figures import Part, counted, grid, scored
from bench.accuracy.gateway import gateway
from bench.accuracy.identities import Identity, chosen
from bench.accuracy.lru import Blocks
from bench.accuracy.observation import Guess, Observation
from bench.accuracy.sampling import NOTES as SAMPLING_NOTES
from bench.accuracy.sampling import sampled_servers, sampled_traces
from bench.accuracy.servers import Servers, running
from bench.accuracy.traces import NOTE as TRACES_NOTE
from bench.accuracy.traces import replayed
from bench.accuracy.workload import Shape, Workload
from bench.figures import Budget, Figure, Report
from bench.options import Options
from bench.progress import Progress
from epp.errors import ConfigError

CACHE = Cache(BLOCKS - 1, BLOCK)
NOTES = (
    "Errors are in per cent of all prompt tokens, the last column in per cent of the requests.",
    "Every predictor is asked before the same routed requests, in the order of sending.",
    "The truth is the `cached_tokens` of each response's usage; aborted requests have none.",
)

_MOST_KNOWN = 12
"""Conversations that go on after a server lost its cache."""
NOTICES = {
    "reset": "wrong predictions after a server silently lost its cache",
    "restart": "wrong predictions after a server was killed and started again",
}


_Found = tuple[list[Part], tuple[str, ...]]
"""What was measured, and the notes on it."""


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
    """Measure everything. Raises `Refused` if a request was not answered."""
    name = options.engine or ("vllm" if is_installed() else "simulator")
    engine = None if name == "none" else ENGINES[name]
    if engine is None and options.traces is None:
        raise ConfigError("without servers and without a trace there is nothing to measure")
    find = _sampled if options.observe else _predicted
    parts, notes = await find(engine, progress, options)
    return Report(
        name="accuracy",
        figures=tuple(figure for part in parts for figure in part.figures),
        notes=notes,
        grids=tuple(part.grid for part in parts),
        picture=b"".join(part.picture for part in parts),
    )


async def _predicted(engine: Engine | None, progress: Progress, options: Options) -> _Found:
    """Hold predictions against the truth, on servers and on traces."""
    parts = [] if engine is None else [await _served(engine, progress, options)]
    if options.traces is None:
        return parts, NOTES
    parts += replayed(progress, options.traces, quick=options.quick)
    return parts, (*NOTES, TRACES_NOTE)


async def _sampled(engine: Engine | None, progress: Progress, options: Options) -> _Found:
    """Measure what it costs to observe fewer responses, on servers or else on a trace."""
    if engine is None:
        assert options.traces is not None
        parts = list(sampled_traces(progress, options.traces, options))
        return parts, (SAMPLING_NOTES[0], TRACES_NOTE)
    effort = QUICK if options.quick else FULL
    rounds = [Shape(requests=effort.requests, concurrency=n) for n in effort.concurrency]
    return [await sampled_servers(engine, rounds, progress, options)], SAMPLING_NOTES


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
    await servers.reset(*servers.ports)
    async with gateway(servers, identity) as url:
        player = Player(url, MODEL, servers.engine.words())
        seen = await player.play(workload)
        ids = await servers.tokenize(each.messages for each in seen)
        results.notices["reset"].append(await _noticed_after(player, servers, servers.reset))
        if restarts:
            results.notices["restart"].append(
                await _noticed_after(player, servers, servers.restart)
            )
    results.keep(identity, workload, seen)
    results.add(identity, own(seen))
    prompts = [Blocks(array("I", each)) for each in ids]
    for name, of in baselines(CACHE).items():
        results.add(name, retold(seen, prompts, of))


async def _noticed_after(
    player: Player, servers: Servers, forget: Callable[[Ports], Awaitable[None]]
) -> int:
    """Let a server forget everything, then go on with conversations that it knew, one by one.

    Returns how many requests it got up to the last one that was predicted to hit at least a
    block more than it did; 0 where there was none.
    """
    ports = servers.ports[0]
    known = [each for each in player.idle if each.endpoint == ports.target and not each.over]
    await forget(ports)
    async with gateway_client() as client:
        seen = [await player.ask(client, conversation) for conversation in known[:_MOST_KNOWN]]
    sent = [each for each in seen if each.endpoint == ports.target]
    wrong = [
        place
        for place, each in enumerate(sent, start=1)
        if each.cached is not None and each.predicted - each.cached >= BLOCK
    ]
    return max(wrong, default=0)


def _part(results: _Results, title: str) -> Part:
    scores = results.scores
    figures = (*scored(scores), *counted(scores), *_noticed(results))
    return Part(figures, grid(title, scores), picture.draw(results.guesses, BLOCK))


def _noticed(results: _Results) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            key=f"{name}_noticed_after",
            says=says,
            unit="requests",
            runs=tuple(results.notices[name]),
            budget=Budget(most=3),
        )
        for name, says in NOTICES.items()
    )
