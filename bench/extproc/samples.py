"""What the measurements find, key by key, run by run."""

from collections import defaultdict

from bench.extproc.stack import Route, is_floor


class Samples:
    """Runs of every figure, in the order in which they were taken."""

    def __init__(self) -> None:
        self.runs: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, key: str, value: float, route: Route = "none") -> None:
        """Note one run; the floor's are kept under the same key with `_floor` appended."""
        self.runs[f"{key}_floor" if is_floor(route) else key].append(value)
