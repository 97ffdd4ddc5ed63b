"""A histogram whose observations are cheap: one bisection and two additions each.

Cumulative buckets, label names and deprecated aliases are computed when a page is written.
"""

from bisect import bisect_left


class Histogram:
    """Counts of values by bucket; `bounds` are the inclusive upper bounds, ascending.

    `counts` has one more entry, for values above the last bound; it is not cumulative.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = tuple(map(float, bounds))  # integers are slow to compare with floats
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        bounds, low, high = self.bounds, 0, len(self.bounds)
        if value <= bounds[0]:  # where most are: no hits, a quick decision
            high = 0
        while low < high:  # `bisect_left`, which costs five times as much from compiled code
            middle = (low + high) >> 1
            if bounds[middle] < value:
                low = middle + 1
            else:
                high = middle
        counts = self.counts
        counts[low] = counts[low] + 1
        self.total += value

    def observe_many(self, value: float, times: int) -> None:
        """Count one value several times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def __add__(self, other: "Histogram") -> "Histogram":
        added = Histogram(self.bounds)
        added.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        added.total = self.total + other.total
        return added
