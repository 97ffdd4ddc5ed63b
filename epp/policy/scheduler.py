"""Puts a request and the fleet together: candidates, a decision, and its accounting."""

from collections.abc import Callable
from itertools import count

from epp.errors import NoEndpoints
from epp.model.events import Admitted, Event
from epp.model.fleet import Fleet
from epp.model.request import Decision, InferenceRequest
from epp.policy.choice import choose
from epp.policy.plugins import PickContext
from epp.policy.profile import Profile


class Scheduler:
    """Decides with one profile over one fleet. `below(n)` draws a number in 0..n-1."""

    def __init__(self, fleet: Fleet, profile: Profile, below: Callable[[int], int]) -> None:
        self._fleet = fleet
        self._profile = profile
        self._below = below
        self._turns = count()

    def route(self, request: InferenceRequest, now: float) -> Decision:
        """Choose, and book the request at the endpoint at once, so that a burst spreads.

        Raises `NoEndpoints`.
        """
        candidates = self._fleet.candidates(request, now)
        if not candidates:
            raise NoEndpoints(_nobody(request, len(self._fleet.endpoints)), retry_after=1)
        decision = choose(
            self._profile, request, candidates, PickContext(self._below, next(self._turns))
        )
        self._fleet.apply(Admitted(request, decision.endpoint.id), now)
        return decision

    def observe(self, event: Event, now: float) -> None:
        """Pass on what became of a request."""
        self._fleet.apply(event, now)


def _nobody(request: InferenceRequest, known: int) -> str:
    if not known:
        return "no endpoint is ready in the pool"
    wanted = ", ".join(request.subset or ()) or "none at all"
    return (
        f"none of the pool's {known} endpoints is in the subset that the gateway allows: {wanted}"
    )
