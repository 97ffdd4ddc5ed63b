"""Who listens at a target when more than one pod says so: addresses are used again.

A pod that is gone, or dies slowly, may still be listed with an address that another one has by
now. The younger pod has it; the older one gets it back when the younger leaves.
"""

from collections.abc import Collection, Iterator, Sequence

from epp.model.endpoint import Endpoint, Target
from epp.model.events import EndpointRemoved, EndpointUpserted, Event

Age = tuple[str, str]
"""Orders pods: the larger, the younger."""


class AddressClaims:
    """The targets that pods claim, and what was told of them."""

    def __init__(self) -> None:
        self._by_target: dict[Target, dict[str, tuple[Age, Endpoint]]] = {}
        self._by_pod: dict[str, tuple[Endpoint, ...]] = {}
        self._told: dict[Target, Endpoint] = {}

    @property
    def told(self) -> Collection[Endpoint]:
        """The endpoints there are, as far as was told."""
        return self._told.values()

    def claim(self, pod: str, age: Age, endpoints: Sequence[Endpoint]) -> Iterator[Event]:
        """Take in all that a pod claims from now on; tell the difference, removals first."""
        before = self._by_pod.pop(pod, ())
        for endpoint in before:
            self._leave(pod, endpoint.target)
        for endpoint in endpoints:
            self._by_target.setdefault(endpoint.target, {})[pod] = age, endpoint
        if endpoints:
            self._by_pod[pod] = tuple(endpoints)
        targets = dict.fromkeys(endpoint.target for endpoint in (*before, *endpoints))
        return self._settle(tuple(targets))

    def _leave(self, pod: str, target: Target) -> None:
        claimants = self._by_target[target]
        del claimants[pod]
        if not claimants:
            del self._by_target[target]

    def _settle(self, targets: Sequence[Target]) -> Iterator[Event]:
        changed = [
            (target, owner)
            for target in targets
            if self._told.get(target) != (owner := self._owner(target))
        ]
        for target, owner in changed:
            known = self._told.get(target)
            if known is not None and (owner is None or _differ(known, owner)):
                del self._told[target]
                yield EndpointRemoved(known.id)
        for target, owner in changed:
            if owner is not None:
                self._told[target] = owner
                yield EndpointUpserted(owner)

    def _owner(self, target: Target) -> Endpoint | None:
        claimants = self._by_target.get(target)
        return max(claimants.values(), key=_age)[1] if claimants else None


def _age(claim: tuple[Age, Endpoint]) -> Age:
    return claim[0]


def _differ(one: Endpoint, other: Endpoint) -> bool:
    """Whether two endpoints are not the same engine."""
    return one.id != other.id or one.engine != other.engine
