"""Says on stderr what a benchmark is at, so that stdout holds results only."""

import time

from rich.console import Console


class Progress:
    """One line per step, with the seconds since the start."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._started = time.monotonic()

    def step(self, says: str) -> None:
        """Announce what begins."""
        self._console.print(f"[dim]{time.monotonic() - self._started:6.1f} s[/dim]  {says}")
