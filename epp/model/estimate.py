"""What one cache is predicted to save of a prompt."""

from typing import Final


class Estimate:
    """Tokens predicted to be cached, blocks found, seconds that the prefill would take."""

    __slots__ = ("cached", "matched", "seconds")

    def __init__(self, cached: int, matched: int, seconds: float) -> None:
        self.cached: Final = cached
        self.matched: Final = matched
        self.seconds: Final = seconds
