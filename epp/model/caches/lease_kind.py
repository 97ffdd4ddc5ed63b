"""Each kind of cache knows its own leases only."""

from typing import TypeVar

from epp.model.caches.lease import Lease

Kind = TypeVar("Kind", bound=Lease)


def own(kind: type[Kind], lease: Lease) -> Kind:
    """Return the lease as what it is. `TypeError`: another kind of cache gave it."""
    if not isinstance(lease, kind):
        raise TypeError("a lease of another kind of cache")
    return lease
