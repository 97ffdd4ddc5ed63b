"""Limits of traffic: far above any real traffic, and within what a machine can hold.

A request over a limit is left out and named; traffic that is over one as a whole is refused.
"""

from epp.errors import ConfigError
from epp.replay.traffic.calls import Call, tokens_in

MAX_TOKENS = 1 << 20
"""Tokens of a prompt, and of a response: as long as a simulated engine's context."""
MAX_SECONDS = 366 * 86_400.0
"""From the first request to the last, and of a pause."""
MAX_REQUESTS = 2_000_000
MAX_PIECES = 1 << 26
"""Runs of tokens and ends of messages in all prompts and responses; some 64 bytes each."""
MAX_TOKENS_IN_ALL = 1 << 36


def check_lengths(prompt: int, response: int) -> None:
    """Raise `ValueError` for impossible lengths in tokens; a response may have none."""
    if prompt < 1 or response < 0:
        raise ValueError("lengths must be positive")
    if max(prompt, response) > MAX_TOKENS:
        raise ValueError(f"it has more than {MAX_TOKENS:,} tokens")


def limit_of(max_tokens: int | None) -> int | None:
    """Return the limit of a response; None for one below 1, such as -1, or beyond any response."""
    if max_tokens is None or not 1 <= max_tokens <= MAX_TOKENS:
        return None
    return max_tokens


class Budget:
    """Counts the calls of the traffic `name` against the limits for all of them together."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls = MAX_REQUESTS
        self._pieces = MAX_PIECES
        self._tokens = MAX_TOKENS_IN_ALL

    def __call__(self, call: Call) -> Call:
        """Count a call and return it. Raises `ConfigError` if it exceeds a limit."""
        self._calls -= 1
        self._pieces -= len(call.prompt) + len(call.response) + len(call.marks)
        self._tokens -= tokens_in(call.prompt) + tokens_in(call.response)
        if min(self._calls, self._pieces, self._tokens) < 0:
            raise too_much(self._name)
        return call


def too_much(name: str) -> ConfigError:
    """Return the error of traffic that is over a limit as a whole."""
    return ConfigError(
        f"it has more than {MAX_REQUESTS:,} requests, {MAX_TOKENS_IN_ALL:,} tokens, or"
        f" {MAX_PIECES:,} messages in all its prompts: replay a part of it",
        name,
    )
