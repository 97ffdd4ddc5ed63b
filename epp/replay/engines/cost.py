"""How long a step takes: the cost model of the routing study."""

from typing import NamedTuple

import msgspec


class StepWork(NamedTuple):
    """What one step computes, in tokens.

    `attended` sums, over the prompt tokens computed, how many each looks back at. `context` is
    what the `decoding` sequences look back at.
    """

    prefill: int = 0
    attended: float = 0.0
    decoding: int = 0
    context: int = 0


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults resemble an 8B model on one H100.

    step = step_ms + prefill_us_per_token * prompt tokens computed
         + attention_ns * sum over these of the tokens before each
         + decode_us_per_seq * decoding sequences
         + decode_ns_per_context_token * the tokens before these.
    """

    step_ms: float = 6.0
    prefill_us_per_token: float = 40.0
    attention_ns: float = 1.75
    decode_us_per_seq: float = 20.0
    decode_ns_per_context_token: float = 56.0

    def seconds(self, work: StepWork) -> float:
        """Return how long a step takes, in seconds."""
        return (
            self.step_ms * 1e-3
            + self.prefill_us_per_token * 1e-6 * work.prefill
            + self.attention_ns * 1e-9 * work.attended
            + self.decode_us_per_seq * 1e-6 * work.decoding
            + self.decode_ns_per_context_token * 1e-9 * work.context
        )

    def growth(self, work: StepWork) -> float:
        """Return how much longer the next step takes that decodes the same sequences."""
        return self.decode_ns_per_context_token * 1e-9 * work.decoding
