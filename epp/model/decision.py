"""The decision made for a request, with what it was made by."""

from collections.abc import Sequence

import msgspec

from epp.model.candidate import Candidate
from epp.model.endpoint import Endpoint, Target


class Score(msgspec.Struct, frozen=True):
    """The values of one scorer, aligned with the decision's candidates.

    `out_of_range`: a value was not in 0..1 (NaN included) and was clamped for the totals; `values`
    holds what the scorer returned.
    """

    plugin: str
    weight: float
    values: Sequence[float]
    out_of_range: bool = False


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoints that a request goes to, and what they were chosen by."""

    endpoints: tuple[Endpoint, ...]
    """In the order of preference; one unless the picker is configured for more."""
    profile: str = "default"
    """The profile that decided."""
    prompt_tokens: int = 0
    """The prompts' length, as estimated for the first endpoint."""
    predicted_cached_tokens: int = 0
    """How many of them its cache is predicted to serve."""
    predicted_ttft: float | None = None
    """The predicted time to first token there, in seconds."""
    predicted_for: Candidate | None = None
    """The candidate that the predictions are for, as it was when it was picked.

    None if no profile made the decision."""
    candidates: Sequence[Candidate] = ()
    """The endpoints that passed the filters."""
    considered: Sequence[Candidate] = ()
    """The endpoints that there were before the filters."""
    scores: Sequence[Score] = ()
    """Those of each scorer."""
    totals: Sequence[float] = ()
    """The weighted sums that the picker compared."""
    stages: "tuple[Decision, ...]" = ()
    """The decisions of other profiles that a handler ran, in that order."""
    prefill: Endpoint | None = None
    """The endpoint that computes the prompt in place of the first; the predictions are for it."""
    headers: tuple[tuple[str, str], ...] = ()
    """Set on the request."""
    targets: tuple[Target, ...] = ()
    """What the endpoints are reached at in place of their own targets, in the same order."""
    disaggregation: str = ""
    """Which stages run at endpoints of their own; empty if none could.

    `decode-only`, `prefill-decode`, `encode-decode` or `encode-prefill-decode`."""

    waited: float | None = None
    """For how many seconds flow control held the request; None: it was not asked."""

    def of(self, profile: str) -> "Decision | None":
        """Return the decision of a profile, or this one for an empty name; None without one."""
        if not profile or profile == self.profile:
            return self
        return next((each for each in self.stages if each.profile == profile), None)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that is preferred."""
        return self.endpoints[0]

    @property
    def destination(self) -> str:
        """The value of the header `x-gateway-destination-endpoint`.

        GIE's endpoint picker protocol: targets, comma-separated in the order of preference. Ranks
        of one server share a target, which is named once.
        """
        if self.targets:
            return ",".join(dict.fromkeys(self.targets))
        if len(self.endpoints) == 1:
            return self.endpoints[0].target
        return ",".join(dict.fromkeys(endpoint.target for endpoint in self.endpoints))

    def served_at(self, target: Target) -> Target:
        """Return the endpoint's own target for what the proxy says has served."""
        return self.endpoint.target if target in self.targets[:1] else target
