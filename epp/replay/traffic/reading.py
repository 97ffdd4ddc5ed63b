"""Traffic by name: a file or folder, or a workload with parameters, as `chat:rate=5,users=40`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from epp.config.schema import near
from epp.errors import ConfigError
from epp.replay.traffic.calls import Call, Trace
from epp.replay.traffic.formats import read_file
from epp.replay.traffic.workloads.agentic import Agents
from epp.replay.traffic.workloads.arrivals import Arrivals, arriving
from epp.replay.traffic.workloads.catalog import CATALOG
from epp.replay.traffic.workloads.shapes import SHAPES

Count = Annotated[int, msgspec.Meta(ge=1)]


class NamedWorkload(Protocol):
    """Conversations by distributions."""

    def calls(self, sessions: int, longest: int | None, seed: int) -> list[Call]:
        """Draw so many conversations, which all begin at 0 seconds.

        A conversation ends before a prompt would be longer than `longest` tokens.
        """
        ...


class Parameters(Arrivals, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be said of any workload, with its defaults; see `Arrivals` for the others."""

    rate: Annotated[float, msgspec.Meta(gt=0)] | None = 5.0
    sessions: Count = 500
    longest: Count | None = None


WORKLOADS: Mapping[str, NamedWorkload] = {**CATALOG, **SHAPES, "inference-day-2026": Agents()}
ALIASES = {
    "agents": "inference-day-2026",
    "chat": "interactive-chat",
    "code": "code-generation",
    "llm-d-b2b": "b2b-saas",
    "llm-d-reasoning": "reasoning",
    "optimized-baseline": "b2b-saas",
    "research": "deep-research",
    "summarization": "batch-summarization-rag",
    "synthetic-data": "batch-synthetic-data-generation",
}


def read(name: str | Path, *, seed: int = 0, strict: bool = False) -> Trace:
    """Return the traffic in a file or folder, or that of a workload.

    Lines that cannot be used are left out and counted, or raise where reading is `strict`. Raises
    `ConfigError`, too where nothing is left.
    """
    path = Path(name)
    if path.exists():
        return read_file(path, seed=seed, strict=strict)
    called, _, given = str(name).partition(":")
    workload = WORKLOADS.get(ALIASES.get(called, called))
    if workload is None:
        known = sorted((*WORKLOADS, *ALIASES))
        hint = near(called, known) or f"; workloads are {', '.join(known)}"
        raise ConfigError(f"there is no file `{name}`, and no workload `{called}`{hint}")
    parameters = _parameters(given, called)
    calls = workload.calls(parameters.sessions, parameters.longest, seed)
    return arriving(Trace(name=called, calls=calls), parameters, seed)


def _parameters(given: str, workload: str) -> Parameters:
    values: dict[str, str] = {}
    for part in filter(None, given.split(",")):
        key, is_given, value = part.partition("=")
        if key not in Parameters.__struct_fields__:
            hint = near(key, Parameters.__struct_fields__) or (
                f"; there are {', '.join(Parameters.__struct_fields__)}"
            )
            raise ConfigError(f"workload {workload} has no parameter `{key}`{hint}")
        if not is_given or key in values:
            problem = "is given twice" if key in values else f"has no value; write {key}=VALUE"
            raise ConfigError(f"parameter `{key}` of workload {workload} {problem}")
        values[key] = value
    try:
        return msgspec.convert(values, Parameters, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"workload {workload}: {error}") from error
