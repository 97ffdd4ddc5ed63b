"""What measurements are given, and what they find: how often and how long, and runs by key."""

from collections import defaultdict

import msgspec

from bench.extproc.stack import Route, is_floor


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """Repetitions of each measurement and seconds of each repetition."""

    rounds: int
    slow_rounds: int
    closed_s: float
    stream_s: float
    open_s: float
    idle_s: float


QUICK = Effort(rounds=3, slow_rounds=2, closed_s=1.75, stream_s=2.25, open_s=3.0, idle_s=4.0)
FULL = Effort(rounds=5, slow_rounds=4, closed_s=4.0, stream_s=5.0, open_s=8.0, idle_s=10.0)


class Samples:
    """Runs of every figure, in the order in which they were taken."""

    def __init__(self) -> None:
        self.runs: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, key: str, value: float, route: Route = "none") -> None:
        """Note one run; the floor's are kept under the same key with `_floor` appended."""
        self.runs[f"{key}_floor" if is_floor(route) else key].append(value)
