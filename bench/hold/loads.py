"""Three loads, as shares of what the pods can serve, and what each policy makes of them.

What they can serve: while more comes than that, requests go to the engines in order of arrival, as
fast as these have room (`python -m bench.hold.loads` measures it). The times between are those at
which the traffic could have come.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path

from msgspec.structs import replace

from bench.accuracy import mooncake
from bench.hold.runs import DRAIN_SECONDS, POD, WARM_UP_SECONDS, Case, Got, Offered, play
from bench.hold.traffic import Client
from epp.errors import ConfigError
from epp.policy.flow.settings import FlowSettings
from epp.replay.plan import Policy, RunPlan, Traffic
from epp.replay.policies import NAMED

PODS = 8
SECONDS = 600.0
"""How long requests come."""
LOADS = (60, 95, 120)
"""In percent of what the pods can serve."""
HOLDING, AT_ONCE, OTHER = "least-ttft", "least-ttft-at-once", "llm-d-router"
COMPARED: Mapping[int, str] = {60: AT_ONCE, 95: AT_ONCE, 120: OTHER}
"""What holding is compared with at each load."""
CAPACITY_PER_S = 7.57
"""What eight pods serve of the conversations that are drawn, in requests a second."""
CAPACITY_COPIES = 2.38
"""What they serve of minutes 0 to 10 of Mooncake's conversation trace, in copies of it."""
_FLOOD = 1.5
"""The load at which what pods can serve is measured, in shares of it."""
_IN_ORDER = FlowSettings(ageing=1e6, most_seconds=inf)


def offered(load: float, trace: Path | None, seed: int) -> Offered:
    """Return the traffic of a load, 1 for what the pods can serve."""
    if trace is None:
        return (Client(name="", rate=load * CAPACITY_PER_S, until=SECONDS),)
    source = str(mooncake.file_at(trace))
    copies = round(load * CAPACITY_COPIES, 3)
    return Traffic(source=source, minutes=(0, SECONDS / 60), copies=copies, seed=seed)


def case(load: float, policy: Policy, trace: Path | None, seed: int) -> Case:
    """Return one run."""
    plan = RunPlan(policy=policy, pods=(POD,) * PODS, seed=seed, drain_seconds=DRAIN_SECONDS)
    return Case(offered=offered(load, trace, seed), plan=plan)


def cases(trace: Path | None, seed: int) -> Iterator[tuple[tuple[int, str], Case]]:
    """Yield the runs of a seed by load and policy, the longest first."""
    for load in reversed(LOADS):
        for name in (COMPARED[load], HOLDING):
            yield (load, name), case(load / 100, NAMED[name], trace, seed)


def capacity(trace: Path | None) -> float:
    """Return what the pods can serve, as a share of what the constants say."""
    policy = replace(NAMED[HOLDING], flow=_IN_ORDER)
    (got,) = play(case(_FLOOD, policy, trace, 0)).values()
    return _FLOOD * served(got)


def served(got: Got) -> float:
    """Return the time in which requests came over that in which they went, without the ends."""
    sent: Sequence[float] = got.sent
    first, last = len(sent) // 20, len(sent) * 19 // 20
    share = (last - first) / len(sent)
    return share * (SECONDS - WARM_UP_SECONDS) / (sent[last] - sent[first])


def main(argv: Sequence[str] | None = None) -> int:
    """Print what the pods can serve; return 0, or 2 if the trace cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m bench.hold.loads", description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path, help="a file or folder (default: drawn)")
    place = parser.parse_args(argv).trace
    unit, said = ("requests/s", CAPACITY_PER_S) if place is None else ("copies", CAPACITY_COPIES)
    try:
        print(f"{said * capacity(place):.3g} {unit}; {said:g} are kept")
    except ConfigError as error:
        print(f"loads: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
