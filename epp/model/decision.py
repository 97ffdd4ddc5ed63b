"""The decision made for a request, with the facts behind it."""

from collections.abc import Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.candidate import Candidate
from epp.model.endpoint import Endpoint, Target
from epp.values import Value


@mypyc_attr(acyclic=True)
class Score(Value):
    """The values of one scorer, aligned with the decision's candidates.

    `out_of_range`: a value was not in 0..1 (NaN included) and was clamped for the totals; `values`
    holds what the scorer returned.
    """

    def __init__(
        self,
        plugin: str,
        weight: float,
        values: Sequence[float],
        out_of_range: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.plugin: Final = plugin
        self.weight: Final = weight
        self.values: Final = values
        self.out_of_range: Final = out_of_range


@mypyc_attr(free_list_len=1, acyclic=True)
class Decision(Value):
    """The endpoints that a request goes to, and the facts that they were chosen by."""

    def __init__(  # noqa: PLR0913, PLR0915 (one fact each)
        self,
        *,
        endpoints: tuple[Endpoint, ...],
        profile: str = "default",
        prompt_tokens: int = 0,
        predicted_cached_tokens: int = 0,
        predicted_ttft: float | None = None,
        predicted_for: Candidate | None = None,
        candidates: Sequence[Candidate] = (),
        considered: Sequence[Candidate] = (),
        scores: Sequence[Score] = (),
        totals: Sequence[float] = (),
        stages: "tuple[Decision, ...]" = (),
        prefill: Endpoint | None = None,
        encode: Endpoint | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        targets: tuple[Target, ...] = (),
        disaggregation: str = "",
        waited: float | None = None,
    ) -> None:
        self.endpoints: Final = endpoints
        """The chosen endpoints, best first; one unless the picker is configured for more."""
        self.profile: Final = profile
        """The profile that decided."""
        self.prompt_tokens: Final = prompt_tokens
        """The prompts' length, as estimated for the first endpoint."""
        self.predicted_cached_tokens: Final = predicted_cached_tokens
        """How many prompt tokens its cache is predicted to serve."""
        self.predicted_ttft: Final = predicted_ttft
        """The predicted time to first token there, in seconds."""
        self.predicted_for: Final = predicted_for
        """The candidate that the predictions are for, as it was when it was picked.

        None if no profile made the decision."""
        self.candidates: Final = candidates
        """The endpoints that passed the filters."""
        self.considered: Final = considered
        """The endpoints before the filters."""
        self.scores: Final = scores
        """The scores of each scorer."""
        self.totals: Final = totals
        """The weighted sums that the picker compared."""
        self.stages: Final = stages
        """The decisions of other profiles that a handler ran, in the order in which they ran."""
        self.prefill: Final = prefill
        """The endpoint that computes the prompt instead; the predictions are for it."""
        self.encode: Final = encode
        """The endpoint that encodes the request's images and sounds; the first of several."""
        self.headers: Final = headers
        """Headers that are set on the request."""
        self.targets: Final = targets
        """Targets that replace those of `endpoints`, in the same order."""
        self.disaggregation: Final = disaggregation
        """Which stages run at endpoints of their own; empty if none could.

        `decode-only`, `prefill-decode`, `encode-decode` or `encode-prefill-decode`."""
        self.waited = waited
        """Seconds for which flow control held the request; None: flow control was not asked.

        Flow control sets it before anyone else has the decision."""

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
        """Return the endpoint's own target for the one that the proxy reported as served."""
        return self.endpoint.target if target in self.targets[:1] else target

    def served_endpoint(self, served: Target | None) -> Endpoint:
        """Return the candidate that the proxy reported as served; the preferred one if unknown."""
        target = self.endpoint.target if served is None else self.served_at(served)
        if target != self.endpoint.target:
            for each in self.candidates:
                if each.endpoint.target == target:
                    return each.endpoint
        return self.endpoint
