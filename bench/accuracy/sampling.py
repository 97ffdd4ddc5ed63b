"""What it costs to observe fewer responses to their end: the same workload, once for each share."""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.accuracy.baselines import own
from bench.accuracy.client import Player
from bench.accuracy.engines import BLOCK, MODEL, Engine
from bench.accuracy.errors import Errors, errors
from bench.accuracy.figures import MEASURES, Part, counted, grid, scored
from bench.accuracy.gateway import gateway
from bench.accuracy.identities import Identity, chosen
from bench.accuracy.replay import BLOCK as TRACE_BLOCK
from bench.accuracy.replay import Replay
from bench.accuracy.servers import Servers, running
from bench.accuracy.traces import KNOWN, traces_at
from bench.accuracy.workload import Shape, Workload
from bench.options import Options
from bench.progress import Progress
from epp.protocol.extproc.observation import Observation

Case = tuple[str, Observation]
"""How blocks are known, and how many responses are observed."""

_KNOWN = {"tokens": "token ids", "text": "text", "events": "token ids and KV events"}
NOTES = (
    "Errors are in per cent of all prompt tokens; every request counts, observed or not.",
    "Answers that are not streamed are always observed.",
)
_MEASURES = {name: MEASURES[name] for name in ("mae", "over", "under")}


def sampled_traces(progress: Progress, place: Path, options: Options) -> Iterator[Part]:
    """Replay traces, once for each way to know a block and each share that is observed."""
    for trace in traces_at(place, quick=options.quick):
        scores: dict[Case, list[Errors]] = {}
        for known in KNOWN:
            for observation in options.observe:
                progress.step(f"{trace.name}: {known}, {_share(observation)}")
                replay = Replay(trace, known, observation=observation)
                replay.run()
                scores[known, observation] = [errors(replay.guesses[known], TRACE_BLOCK)]
        yield _part(trace.name, scores, f"_{trace.name}")


async def sampled_servers(
    engine: Engine, rounds: Sequence[Shape], progress: Progress, options: Options
) -> Part:
    """Play against servers behind an Envoy that shows response bodies as `STREAMED`."""
    scores: defaultdict[Case, list[Errors]] = defaultdict(list)
    identities = chosen(engine.name, options.identities)
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        progress.step(f"two servers: {engine.name}")
        async with running(engine, Path(name)) as servers:
            for turn, shape in enumerate(rounds):
                workload = Workload(shape, turn)
                for identity in identities:
                    for observation in options.observe:
                        progress.step(f"{identity}, {_share(observation)}, round {turn + 1}")
                        score = await _play(servers, identity, workload, observation)
                        scores[identity, observation].append(score)
    return _part(engine.title, scores)


async def _play(
    servers: Servers, identity: Identity, workload: Workload, observation: Observation
) -> Errors:
    """Play a workload on servers that hold nothing, with a picker that knows nothing."""
    await servers.reset(*servers.ports)
    async with gateway(servers, identity, observation) as url:
        seen = await Player(url, MODEL, servers.engine.words()).play(workload)
    return errors(own(seen), BLOCK)


def _part(title: str, scores: Mapping[Case, Sequence[Errors]], suffix: str = "") -> Part:
    names = {_name(case): _says(case) for case in scores}
    named = {_name(case): runs for case, runs in scores.items()}
    figures = scored(named, suffix, names, _MEASURES)
    every = [each for runs in scores.values() for each in runs]
    return Part(
        (*figures, *counted({"text": every}, suffix)), grid(title, named, suffix, names, _MEASURES)
    )


def _name(case: Case) -> str:
    known, observation = case
    return f"{known}_observe_{observation.one_in or observation}"


def _says(case: Case) -> str:
    known, observation = case
    return f"{_KNOWN[known]}, {_share(observation)}"


def _share(observation: Observation) -> str:
    known = {"all": "every response observed", "first": "only first chunks observed"}
    known["auto"] = "observed as `auto` does"
    return known.get(str(observation), f"one response in {observation.one_in} observed")
