"""One endpoint as a policy sees it when it decides on a request."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from epp.model.endpoint import CurrentLoad, Endpoint, Load
from epp.model.learning.ttft_share import DEFAULT_TTFT_SHARE
from epp.model.prompts.chain import Chain


class LoadSource(Protocol):
    """Knows the load of one endpoint at any moment, in seconds of the picker's clock."""

    def at(self, now: float, /) -> CurrentLoad:
        """Return the load."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint's predicted state and costs for one request at one moment.

    Tokens: `prompt_tokens` is the request's, `cached_tokens` how many of them the endpoint's
    cache is predicted to serve; `matched_blocks` of `total_blocks` says the same in blocks.
    Seconds: `queued_prefill_seconds` of prefill sent before and not yet done, or, where that is
    longer, until the request's adapter has a slot; `prefill_seconds` that this request would take,
    `class_prefill_seconds` that it would at an endpoint of the class's own speed, `decode_seconds`
    that running decodes would add to it; `generation_seconds` that its response then takes,
    `crowding_seconds` that its prefill costs running decodes, and its decode and theirs each other,
    all of them together; `slot_seconds` for which it takes an adapter's slot from others.
    `requests` counts what this picker sent and has not seen end, `in_flight_tokens` the uncached
    tokens of their prompts whose first token it has not seen. `busy_share`, in 0..1, is the
    fleet's: the share of endpoints with prefill to do, averaged over ten seconds. `ttft_share`, in
    0..1, is the fleet's mean TTFT over its mean end-to-end latency. `trust`, in
    0..1, says how well recent predictions for the endpoint's cache held; `cached_tokens` already
    takes it into account. `fits`: whether the model's context there has room for the request and
    for what it may generate, by a low estimate of its length; None where that was not asked or is
    not known. `chains` are the blocks of the request's prompts.

    `load` is the last report, as it came, which may be a second old. Policies that compare load
    read `waiting`, `running`, `kv_usage` and the adapters here: the report and what was sent and
    seen done until `now` (seconds), where `current` knows that.
    """

    endpoint: Endpoint
    load: Load
    prompt_tokens: int = 0
    cached_tokens: int = 0
    matched_blocks: int = 0
    total_blocks: int = 0
    queued_prefill_seconds: float = 0.0
    prefill_seconds: float = 0.0
    class_prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    generation_seconds: float = 0.0
    crowding_seconds: float = 0.0
    slot_seconds: float = 0.0
    requests: int = 0
    in_flight_tokens: int = 0
    busy_share: float = 0.0
    ttft_share: float = DEFAULT_TTFT_SHARE
    trust: float = 1.0
    fits: bool | None = None
    current: LoadSource | None = None
    now: float = 0.0
    chains: Sequence[Chain] = ()

    @property
    def predicted_ttft(self) -> float:
        """Seconds until the request's first token here: what is queued, its prefill, decodes."""
        return self.queued_prefill_seconds + self.prefill_seconds + self.decode_seconds

    def cost_terms(self) -> dict[str, float]:
        """Return what a pick here costs by its terms, in milliseconds, and the fleet's shares.

        Rounded to be read: microseconds, thousandths of `busy_share`, millionths of `ttft_share`.
        """
        return {
            "queued_prefill_ms": round(1e3 * self.queued_prefill_seconds, 3),
            "prefill_ms": round(1e3 * self.prefill_seconds, 3),
            "class_prefill_ms": round(1e3 * self.class_prefill_seconds, 3),
            "decode_ms": round(1e3 * self.decode_seconds, 3),
            "generation_ms": round(1e3 * self.generation_seconds, 3),
            "crowding_ms": round(1e3 * self.crowding_seconds, 3),
            "slot_ms": round(1e3 * self.slot_seconds, 3),
            "busy_share": round(self.busy_share, 3),
            "ttft_share": round(self.ttft_share, 6),
        }

    @property
    def waiting(self) -> float:
        """Requests that wait in the engine's queue, whoever sent them."""
        return self._borne().waiting

    @property
    def running(self) -> float:
        """Requests that the engine computes, whoever sent them."""
        return self._borne().running

    @property
    def kv_usage(self) -> float:
        """The share of the KV cache that requests hold, in 0..1."""
        return self._borne().kv_usage

    @property
    def running_adapters(self) -> frozenset[str]:
        """The adapters of requests that the engine computes."""
        return self._borne().running_adapters

    @property
    def waiting_adapters(self) -> frozenset[str]:
        """The adapters of requests that wait in the engine's queue."""
        return self._borne().waiting_adapters

    def _borne(self) -> Load | CurrentLoad:
        return self.load if self.current is None else self.current.at(self.now)
