"""What one request taught: what was predicted for it, and what the model server says it was."""

from collections.abc import Sequence

import msgspec

from bench.accuracy.workload import Reply

Message = dict[str, str]


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One request, in the order of sending (`at`, seconds). Counts are tokens.

    `cached` and `prompt` are the model server's word, None and 0 where the answer did not get
    that far. `generated` counts what came out as far as the client saw.
    """

    at: float
    session: int
    turn: int
    endpoint: str
    reply: Reply
    noise: bool
    messages: Sequence[Message]
    predicted: int
    predicted_prompt: int
    prompt: int = 0
    cached: int | None = None
    generated: int = 0


class Guess(msgspec.Struct, frozen=True):
    """A prediction beside the truth; all in tokens."""

    prompt: int
    predicted: int
    actual: int

    @property
    def error(self) -> int:
        """How much was predicted too much; below 0: too little."""
        return self.predicted - self.actual
