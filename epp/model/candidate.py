"""One endpoint as a policy sees it when it decides on a request."""

from collections.abc import Sequence
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from epp.model.endpoint import CurrentLoad, Endpoint, Load
from epp.model.learning.ttft_share import DEFAULT_TTFT_SHARE
from epp.model.prompts.chain import Chain
from epp.values import Value

COST_TERMS: Final[tuple[str, ...]] = (
    "queued_prefill",
    "prefill",
    "class_prefill",
    "decode",
    "generation",
    "crowding",
    "slot",
)
"""The terms of a pick's cost; `Candidate` has each under its name and `_seconds`."""


class LoadSource(Protocol):
    """Knows the load of one endpoint at any moment, in seconds of the picker's clock."""

    def at(self, now: float, /) -> CurrentLoad:
        """Return the load."""


@mypyc_attr(acyclic=True)
class Candidate(Value):
    """An endpoint's predicted state and costs for one request at one moment.

    `load` is the last report, unchanged, which may be a second old. Policies that compare load read
    `waiting`, `running`, `kv_usage` and the adapters here. With `current`, these are the report
    corrected by what was sent and seen to end until `now`.
    """

    def __init__(  # noqa: PLR0913, PLR0915 (one fact each)
        self,
        *,
        endpoint: Endpoint,
        load: Load,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        matched_blocks: int = 0,
        total_blocks: int = 0,
        queued_prefill_seconds: float = 0.0,
        prefill_seconds: float = 0.0,
        class_prefill_seconds: float = 0.0,
        decode_seconds: float = 0.0,
        generation_seconds: float = 0.0,
        crowding_seconds: float = 0.0,
        slot_seconds: float = 0.0,
        requests: int = 0,
        in_flight_tokens: int = 0,
        busy_share: float = 0.0,
        ttft_share: float = DEFAULT_TTFT_SHARE,
        trust: float = 1.0,
        fits: bool | None = None,
        current: LoadSource | None = None,
        now: float = 0.0,
        chains: Sequence[Chain] = (),
    ) -> None:
        self.endpoint: Final = endpoint
        """The endpoint."""
        self.load: Final = load
        """Its last report."""
        self.prompt_tokens: Final = prompt_tokens
        """The tokens of the request's prompts."""
        self.cached_tokens: Final = cached_tokens
        """How many of them its cache is predicted to serve; `trust` is taken into account."""
        self.matched_blocks: Final = matched_blocks
        """How many leading blocks the index finds here; `trust` does not reduce them."""
        self.total_blocks: Final = total_blocks
        """The blocks of the request's prompts."""
        self.queued_prefill_seconds: Final = queued_prefill_seconds
        """Prefill that is queued before it or, if longer, the wait for the adapter's slot."""
        self.prefill_seconds: Final = prefill_seconds
        """The time of this request's prefill here."""
        self.class_prefill_seconds: Final = class_prefill_seconds
        """The time of this prefill at the speed of the endpoint's class."""
        self.decode_seconds: Final = decode_seconds
        """The time that running decodes would add to this prefill."""
        self.generation_seconds: Final = generation_seconds
        """The time of its response after the first token."""
        self.crowding_seconds: Final = crowding_seconds
        """The time that its prefill costs running decodes, and that decodes cost each other."""
        self.slot_seconds: Final = slot_seconds
        """For how long it takes an adapter's slot from other adapters."""
        self.requests: Final = requests
        """Requests that this picker sent here and has not seen end."""
        self.in_flight_tokens: Final = in_flight_tokens
        """The uncached tokens of these requests, without those whose first token was seen."""
        self.busy_share = busy_share
        """The share (0..1) of the fleet with prefill to do, averaged over ten seconds."""
        self.ttft_share: Final = ttft_share
        """The fleet's mean TTFT over its mean end-to-end latency (0..1)."""
        self.trust: Final = trust
        """How well recent predictions for the endpoint's cache held, from 0 to 1."""
        self.fits: Final = fits
        """Whether the model's context has room for the request and its output.

        Decided by a low estimate of its length; None if not checked or not known."""
        self.current: Final = current
        """Knows the load at any moment; None if only the report is known."""
        self.now: Final = now
        """The moment, in seconds of the picker's clock."""
        self.chains: Final = chains
        """The blocks of the request's prompts."""
        self._load: CurrentLoad | None = None  # as of the first look

    @property
    def predicted_ttft(self) -> float:
        """Seconds until the request's first token here: queue, prefill, and running decodes."""
        return self.queued_prefill_seconds + self.prefill_seconds + self.decode_seconds

    def cost_seconds(self) -> dict[str, float]:
        """Return the terms of a pick's cost here, in seconds."""
        return {name: getattr(self, f"{name}_seconds") for name in COST_TERMS}

    def cost_terms(self) -> dict[str, float]:
        """Return the terms in milliseconds, and the fleet's shares, for readers.

        Rounded to microseconds, thousandths of `busy_share`, and millionths of `ttft_share`.
        """
        terms = {f"{name}_ms": round(1e3 * value, 3) for name, value in self.cost_seconds().items()}
        shares = {"busy_share": round(self.busy_share, 3), "ttft_share": round(self.ttft_share, 6)}
        return terms | shares

    @property
    def waiting(self) -> float:
        """Requests that wait in the engine's queue, whatever their sender."""
        return self._load_now().waiting

    @property
    def running(self) -> float:
        """Requests that the engine computes, whatever their sender."""
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
        if self.current is None:
            return self.load
        if self._load is None:
            self._load = self.current.at(self.now)
        return self._load
