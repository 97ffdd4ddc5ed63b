"""Ownership of targets (`address:port`) that several pods claim: Kubernetes reuses pod addresses.

A pod that is gone, or that terminates slowly, may still be listed with an address that another
pod has by then. The younger pod owns the target; the older one owns it again when the younger
withdraws.
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from epp.model.endpoint import Endpoint, Target
from epp.model.events import EndpointRemoved, EndpointUpserted, Event

Age = tuple[str, str]
"""Orders pods by age: the larger, the younger."""


class AddressClaims:
    """The targets that pods claim, and the endpoint announced for each."""

    def __init__(self) -> None:
        self._by_target: dict[Target, dict[str, tuple[Age, Endpoint]]] = {}
        self._by_pod: dict[str, tuple[Endpoint, ...]] = {}
        self._announced: dict[Target, Endpoint] = {}

    def claim(self, pod: str, age: Age, endpoints: Sequence[Endpoint]) -> Iterator[Event]:
        """Replace all claims of a pod; return the events that follow, removals first."""
        before = self._by_pod.pop(pod, ())
        for endpoint in before:
            self._withdraw(pod, endpoint.target)
        for endpoint in endpoints:
            self._by_target.setdefault(endpoint.target, {})[pod] = age, endpoint
        if endpoints:
            self._by_pod[pod] = tuple(endpoints)
        targets = dict.fromkeys(endpoint.target for endpoint in (*before, *endpoints))
        return self._announce(tuple(targets))

    def _withdraw(self, pod: str, target: Target) -> None:
        claimants = self._by_target[target]
        del claimants[pod]
        if not claimants:
            del self._by_target[target]

    def _announce(self, targets: Sequence[Target]) -> Iterator[Event]:
        """Announce the owner of each target whose owner changed."""
        changed = [
            (target, owner)
            for target in targets
            if self._announced.get(target) != (owner := self._owner(target))
        ]
        for target, owner in changed:
            known = self._announced.get(target)
            if known is not None and (owner is None or _is_other_engine(known, owner)):
                del self._announced[target]
                yield EndpointRemoved(known.id)
        for target, owner in changed:
            if owner is not None:
                self._announced[target] = owner
                yield EndpointUpserted(owner)

    def _owner(self, target: Target) -> Endpoint | None:
        claimants = self._by_target.get(target)
        return max(claimants.values(), key=itemgetter(0))[1] if claimants else None


def _is_other_engine(one: Endpoint, other: Endpoint) -> bool:
    return one.id != other.id or one.engine != other.engine
