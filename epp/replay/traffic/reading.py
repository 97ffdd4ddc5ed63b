"""Traffic by name: a file, a folder or a workload, with parameters as in `chat:rate=5,cv=2`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from epp.config.schema import near
from epp.errors import ConfigError
from epp.protocol.conversion import convert
from epp.replay.traffic.bounds import MAX_TOKENS
from epp.replay.traffic.calls import Trace
from epp.replay.traffic.files.packed import is_there
from epp.replay.traffic.formats import read_file
from epp.replay.traffic.workloads.agentic import Agents
from epp.replay.traffic.workloads.arrivals import Arrivals, Count, Rate, arriving
from epp.replay.traffic.workloads.catalog import CATALOG, CatalogEntry
from epp.replay.traffic.workloads.shapes import SHAPES, SharedPrefix

_WITH_PARAMETERS = re.compile(r"(.*?):((?:\w+(?:=.*)?)?)")
_BENDING = ("to_rate", "cv")
_ALONE = {"users": ("rate", *_BENDING, "like"), "like": _BENDING}
"""Parameters that say when requests come, and those that they leave nothing to say."""
_Given = TypeVar("_Given", bound=Arrivals)


class Parameters(Arrivals, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of any workload, with their defaults; see `Arrivals` for the others.

    Without a `rate`, `like` keeps the times of its file.
    """

    rate: Rate | None = 5.0
    sessions: Count = 500
    longest: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)] | None = None


WORKLOADS: Mapping[str, CatalogEntry | SharedPrefix | Agents] = {
    **CATALOG,
    **SHAPES,
    "inference-day-2026": Agents(),
}
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

    Either may have parameters after `:`; a file takes those of `Arrivals`:
    `trace.jsonl:rate=5,cv=2`. Lines that cannot be used are left out and counted, or raise if
    reading is `strict`. Raises `ConfigError`, also if nothing is left.
    """
    called, given = parted(str(name))
    if is_there(Path(called)):
        arrivals = _parameters(given, called, Arrivals)
        return arriving(read_file(Path(called), seed=seed, strict=strict), arrivals, seed)
    workload = WORKLOADS.get(ALIASES.get(called, called))
    if workload is None:
        known = sorted((*WORKLOADS, *ALIASES))
        hint = near(called, known) or f"; workloads are {', '.join(known)}"
        raise ConfigError(f"there is no file `{name}`, and no workload `{called}`{hint}")
    parameters = _parameters(given, called, Parameters)
    if parameters.like is not None and "rate=" not in given:
        parameters = msgspec.structs.replace(parameters, rate=None)
    calls = workload.calls(parameters.sessions, parameters.longest, seed)
    return arriving(Trace(name=called, calls=calls), parameters, seed)


def parted(name: str) -> tuple[str, str]:
    """Return the file, folder or workload of a name, and its parameters."""
    found = None if is_there(Path(name)) else _WITH_PARAMETERS.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def _parameters(given: str, called: str, kind: type[_Given]) -> _Given:
    values: dict[str, str] = {}
    for part in filter(None, given.split(",")):
        key, is_given, value = part.partition("=")
        if key not in kind.__struct_fields__:
            hint = near(key, kind.__struct_fields__) or (
                f"; there are {', '.join(kind.__struct_fields__)}"
            )
            raise ConfigError(f"{called} has no parameter `{key}`{hint}")
        if not is_given or key in values:
            problem = "is given twice" if key in values else f"has no value; write {key}=VALUE"
            raise ConfigError(f"parameter `{key}` of {called} {problem}")
        values[key] = value
    try:
        asked = convert(values, kind, strict=False)
    except ConfigError as error:
        raise ConfigError(f"`{error.place}` of {called}: {error.problem}") from None
    for said, others in _ALONE.items():
        if said in values and (ignored := next((each for each in others if each in values), None)):
            raise ConfigError(f"{called}: `{ignored}` has no effect beside `{said}`")
    bending = next((each for each in _BENDING if each in values), None)
    if bending is not None and asked.rate is None:
        raise ConfigError(
            f"{called}: `{bending}` has no effect without a `rate`: its times are kept"
        )
    return asked
