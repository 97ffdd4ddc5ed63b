"""Who leads, by a Lease: what a record that was read means, and what to write next.

Time is the process's own: a holder's timestamps are never compared with a clock here, only
whether they change (client-go, `tools/leaderelection`). This file does no I/O.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """`spec` of a Lease (`coordination.k8s.io/v1`), as far as elections go by it."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseView(msgspec.Struct, frozen=True):
    """A Lease, read."""

    spec: LeaseSpec = LeaseSpec()


class LeaderElectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an election goes; durations in seconds, defaults of client-go.

    Others may take the lease when its holder has not renewed it for `duration`; a holder that
    has not managed to renew it for `deadline` stops leading of itself. Both try every `retry`.
    """

    identity: str
    duration: int = 15
    deadline: float = 10.0
    retry: float = 2.0


class LeaseAction(Enum):
    """What is to be done about a lease that was read."""

    CREATE = "there is none"
    TAKE = "its holder has let go of it"
    RENEW = "it is ours"
    WAIT = "it is another's"


class LeaseCandidate:
    """One candidate's view of the lease; `now` is monotonic, in seconds."""

    def __init__(self, terms: LeaderElectionConfig) -> None:
        self.terms = terms
        self.holder = ""
        self._seen: LeaseSpec | None = None
        self._changed_at = 0.0

    def read(self, lease: LeaseView | None, now: float) -> LeaseAction:
        """Take in the lease as it is, None where there is none; say what to do."""
        if lease is None:
            self.holder = ""
            return LeaseAction.CREATE
        if lease.spec != self._seen:
            self._seen, self._changed_at = lease.spec, now
        self.holder = lease.spec.holder_identity or ""
        if self.holder == self.terms.identity:
            return LeaseAction.RENEW
        if not self.holder or now >= self._changed_at + self._duration(lease.spec):
            return LeaseAction.TAKE
        return LeaseAction.WAIT

    def _duration(self, spec: LeaseSpec) -> int:
        return spec.lease_duration_seconds or self.terms.duration


def held(
    document: Mapping[str, Any], step: LeaseAction, terms: LeaderElectionConfig, stamp: str
) -> dict[str, Any]:
    """Write the lease down as ours; `stamp` is the time (RFC 3339 with microseconds, UTC).

    Everything in the document that elections do not go by is kept.
    """
    spec = dict(document.get("spec") or {})
    if step is not LeaseAction.RENEW:
        spec["acquireTime"] = stamp
        spec["leaseTransitions"] = (spec.get("leaseTransitions") or 0) + (step is LeaseAction.TAKE)
    spec |= {
        "holderIdentity": terms.identity,
        "leaseDurationSeconds": terms.duration,
        "renewTime": stamp,
    }
    return {**document, "spec": spec}


def released(document: Mapping[str, Any], stamp: str) -> dict[str, Any]:
    """Write the lease down as nobody's, for others to take at once (client-go, `release`)."""
    spec = dict(document.get("spec") or {})
    spec |= {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": stamp,
        "renewTime": stamp,
    }
    return {**document, "spec": spec}
