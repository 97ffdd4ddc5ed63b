"""Sums over the last seconds."""

from collections import deque


class WindowSum:
    """The sum of the numbers added within the last `seconds`, to the second.

    It keeps at most one number for each of these seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._added: deque[tuple[int, float]] = deque()
        self._sum = 0.0

    def add(self, now: float, amount: float) -> None:
        """Add an amount now; time never goes back."""
        self.total(now)
        same = self._added and self._added[-1][0] == int(now)
        before = self._added.pop()[1] if same else 0.0
        self._added.append((int(now), before + amount))
        self._sum += amount

    def total(self, now: float) -> float:
        """Return the sum, and forget numbers from before the window."""
        start = int(now - self._seconds)
        while self._added and self._added[0][0] < start:
            self._sum -= self._added.popleft()[1]
        if not self._added:
            self._sum = 0.0  # without what rounding has left
        return self._sum


NOTHING = WindowSum(0.0)
"""The sum for what nothing was added for."""
