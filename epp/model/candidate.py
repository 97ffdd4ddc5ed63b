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

    `load` is the last report, as it came, which may be a second old. Policies that compare load
    read `waiting`, `running`, `kv_usage` and the adapters here: the report and what was sent and
    seen done until `now`, if `current` knows that.
    """

    endpoint: Endpoint
    """The endpoint."""
    load: Load
    """Its last report."""
    prompt_tokens: int = 0
    """The tokens of the request's prompts."""
    cached_tokens: int = 0
    """How many of them its cache is predicted to serve; `trust` is taken into account."""
    matched_blocks: int = 0
    """The same in blocks."""
    total_blocks: int = 0
    """The blocks of the request's prompts."""
    queued_prefill_seconds: float = 0.0
    """Prefill sent before and not done; or, if longer, the wait for the adapter's slot."""
    prefill_seconds: float = 0.0
    """What the prefill of this request would take here."""
    class_prefill_seconds: float = 0.0
    """What it would take at an endpoint of the class's own speed."""
    decode_seconds: float = 0.0
    """What running decodes would add to it."""
    generation_seconds: float = 0.0
    """What its response then takes."""
    crowding_seconds: float = 0.0
    """What its prefill costs running decodes, and its decode and theirs cost each other, in all."""
    slot_seconds: float = 0.0
    """For how long it takes an adapter's slot from others."""
    requests: int = 0
    """Requests that this picker sent here and has not seen end."""
    in_flight_tokens: int = 0
    """The uncached tokens of those whose first token it has not seen."""
    busy_share: float = 0.0
    """The share (0..1) of the fleet's endpoints with prefill to do, averaged over ten seconds."""
    ttft_share: float = DEFAULT_TTFT_SHARE
    """The fleet's mean TTFT over its mean end-to-end latency (0..1)."""
    trust: float = 1.0
    """How well recent predictions for the endpoint's cache held, from 0 to 1."""
    fits: bool | None = None
    """Whether the model's context has room for the request and for what it may generate.

    By a low estimate of its length; None if that was not asked or is not known."""
    current: LoadSource | None = None
    """Knows the load at any moment; None if only the report does."""
    now: float = 0.0
    """The moment, in seconds of the picker's clock."""
    chains: Sequence[Chain] = ()
    """The blocks of the request's prompts."""

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
        """Requests that wait in the engine's queue, no matter who sent them."""
        return self._load_now().waiting

    @property
    def running(self) -> float:
        """Requests that the engine computes, no matter who sent them."""
        return self._load_now().running

    @property
    def kv_usage(self) -> float:
        """The share of the KV cache that requests hold, in 0..1."""
        return self._load_now().kv_usage

    @property
    def running_adapters(self) -> frozenset[str]:
        """The adapters of requests that the engine computes."""
        return self._load_now().running_adapters

    @property
    def waiting_adapters(self) -> frozenset[str]:
        """The adapters of requests that wait in the engine's queue."""
        return self._load_now().waiting_adapters

    def _load_now(self) -> Load | CurrentLoad:
        return self.load if self.current is None else self.current.at(self.now)
