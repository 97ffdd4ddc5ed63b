"""The scheduler: gets candidates from the fleet and a choice among them from the profile."""

from collections.abc import Callable
from itertools import count

from epp.errors import NoEndpoints
from epp.model.events import Admitted
from epp.model.fleet import Fleet
from epp.model.quote import Quote
from epp.model.request import Decision, InferenceRequest
from epp.policy.choice import choose
from epp.policy.plugins import PickContext
from epp.policy.profile import Profile


class Scheduler:
    """Decides with one profile over one fleet. `below(n)` returns a random number in 0..n-1.

    A request is quoted once, decided on any number of times, and committed to one decision.
    """

    def __init__(self, fleet: Fleet, profile: Profile, below: Callable[[int], int]) -> None:
        self._fleet = fleet
        self._profile = profile
        self._below = below
        self._turns = count()

    def quote(self, request: InferenceRequest, now: float) -> Quote:
        """Hash a request's prompts and estimate their lengths; the quote does not expire."""
        return self._fleet.quote(request, now)

    def decide(self, request: InferenceRequest, quote: Quote, now: float) -> Decision:
        """Choose endpoints for a request by the state at `now`; the fleet does not change.

        The profile's plug-ins see `request`, which may have been stripped of its prompts and its
        body since it was quoted. Raises `NoEndpoints`.
        """
        candidates = self._fleet.candidates(quote, now)
        if not candidates:
            raise NoEndpoints(_no_candidates(quote, len(self._fleet.endpoints)), retry_after=1)
        return choose(
            self._profile, request, candidates, PickContext(self._below, next(self._turns))
        )

    def commit(self, quote: Quote, decision: Decision, now: float) -> None:
        """Admit a request to the endpoint that was decided on."""
        self._fleet.apply(Admitted(quote, decision.endpoint.id), now)

    def route(self, request: InferenceRequest, now: float) -> Decision:
        """Decide on a request and admit it at once, so that a burst spreads.

        Raises `NoEndpoints`.
        """
        quote = self.quote(request, now)
        decision = self.decide(request, quote, now)
        self.commit(quote, decision, now)
        return decision


def _no_candidates(quote: Quote, known: int) -> str:
    if not known:
        return "no endpoint is ready in the pool"
    wanted = ", ".join(quote.subset or ()) or "none at all"
    return (
        f"none of the pool's {known} endpoints is in the subset that the gateway allows: {wanted}"
    )
