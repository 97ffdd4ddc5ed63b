"""Leader election by a Lease, without I/O: what a lease that was read means, and what to write.

Mirrors client-go, `tools/leaderelection/leaderelection.go`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a Lease's `spec` (`coordination.k8s.io/v1`) that an election compares.

    It reads the first two; a change of any shows that the holder is alive. `lease_duration_seconds`
    is in seconds, `renew_time` a MicroTime.
    """

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaderElectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The timing of an election, in seconds; names and defaults are client-go's.

    Another candidate may acquire a lease that its holder has not renewed for `lease_duration`.
    Every candidate tries for `renew_deadline` at most, and again after `retry_period`. `identity`
    names this candidate among all others. A new leader gets traffic within `notice_period`, which
    client-go does not have: in this project's chart a proxy checks its picker's health every
    second, and a kubelet the proxy's readiness every 2.
    """

    identity: str
    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    notice_period: float = 5.0


class LeaseAction(Enum):
    """The action of a candidate for the lease that it read."""

    CREATE = "there is no lease"
    ACQUIRE = "it has no holder, or its holder stopped renewing it"
    RENEW = "this candidate holds it"
    WAIT = "another candidate holds it"


class LeaseCandidate:
    """One candidate's view of the lease. Times are seconds of a monotonic clock."""

    def __init__(self, config: LeaderElectionConfig) -> None:
        self._config = config
        self._observed: LeaseSpec | None = None
        self._observed_at = 0.0

    def read(self, lease: LeaseSpec | None, now: float) -> LeaseAction:
        """Observe the lease (None: there is none) and return what to do about it."""
        if lease is None:
            return LeaseAction.CREATE
        # client-go `setObservedRecord`: the holder's timestamps are compared with each other
        # only, never with a clock of this machine; the lease expires a duration after the last
        # change that was seen here.
        if lease != self._observed:
            self._observed, self._observed_at = lease, now
        holder = lease.holder_identity
        if holder == self._config.identity:
            return LeaseAction.RENEW
        duration = lease.lease_duration_seconds or self._config.lease_duration
        if not holder or now >= self._observed_at + duration:
            return LeaseAction.ACQUIRE
        return LeaseAction.WAIT


def acquired(
    document: Mapping[str, Any], action: LeaseAction, config: LeaderElectionConfig, now: str
) -> dict[str, Any]:
    """Return the lease as held by this candidate; `now` is a MicroTime (RFC 3339, UTC).

    Everything in `document` that elections do not write is kept.
    """
    spec = dict(document.get("spec") or {})
    # client-go `tryAcquireOrRenew`: a renewal keeps `acquireTime` and `leaseTransitions`.
    if action is not LeaseAction.RENEW:
        spec["acquireTime"] = now
        spec["leaseTransitions"] = (spec.get("leaseTransitions") or 0) + (
            action is LeaseAction.ACQUIRE
        )
    spec |= {
        "holderIdentity": config.identity,
        "leaseDurationSeconds": config.lease_duration,
        "renewTime": now,
    }
    return {**document, "spec": spec}


def released(document: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return the lease without a holder, so that another candidate acquires it at once.

    `now` is a MicroTime.
    """
    spec = dict(document.get("spec") or {})
    # client-go `release`: an empty holder, and a duration of 1 s, as 0 is not valid.
    spec |= {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": now,
        "renewTime": now,
    }
    return {**document, "spec": spec}
