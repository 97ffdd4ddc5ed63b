"""Digests of what caches hold, by which replicas find out that they differ, and where.

Hashes fall into buckets by their first bits. A digest has the sum of each bucket, so the order of
hashes does not matter. From the number of buckets that differ follows roughly how many blocks do.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from math import inf, log
from typing import Final

from epp.model.endpoint import EndpointId
from epp.protocol.replicas.chains import written_sizes

BUCKETS: Final = 1024
_BUCKET_SHIFT: Final = 64 - BUCKETS.bit_length() + 1
_MASK: Final = (1 << 32) - 1
MIN_DIFFERENT: Final = 64
"""Blocks of one endpoint in which replicas may differ, since facts are under way."""
MAX_DIFFERENT: Final = 0.01
"""The same, as a share of all that one of them holds."""


def digest(hashes: Iterable[int]) -> bytes:
    """Return the sums of all buckets."""
    sums = [0] * BUCKETS
    for each in hashes:
        sums[each >> _BUCKET_SHIFT] += each & _MASK
    return written_sizes([each & _MASK for each in sums])


def differing(ours: bytes, theirs: bytes) -> list[int]:
    """Return the buckets that differ. Raises `ValueError` for what is not a digest."""
    if len(theirs) != len(ours):
        raise ValueError(f"a digest has {BUCKETS} sums")
    if ours == theirs:
        return []
    one, other = array("I", ours), array("I", theirs)
    return [bucket for bucket in range(BUCKETS) if one[bucket] != other[bucket]]


def blocks_apart(buckets: int) -> float:
    """Estimate how many blocks differ if this many buckets do; infinite if all do."""
    return -BUCKETS * log(1 - buckets / BUCKETS) if buckets < BUCKETS else inf


def too_different(buckets: int, blocks: int) -> bool:
    """Return whether caches differ by more than facts that are under way explain."""
    return blocks_apart(buckets) > max(MIN_DIFFERENT, MAX_DIFFERENT * blocks)


def within(
    hashes: Sequence[int], sizes: Sequence[int], buckets: Collection[int]
) -> tuple["array[int]", "array[int]"]:
    """Return the blocks that fall into these buckets, with their sizes."""
    wanted = bytearray(BUCKETS)
    for bucket in buckets:
        wanted[bucket] = 1
    kept = [at for at, each in enumerate(hashes) if wanted[each >> _BUCKET_SHIFT]]
    return array("Q", [hashes[at] for at in kept]), array("Q", [sizes[at] for at in kept])


def changes(
    ours: Sequence[int], theirs: Sequence[int], sizes: Sequence[int], buckets: Collection[int]
) -> tuple["array[int]", "array[int]", "array[int]"]:
    """Return the blocks that only they hold, with their sizes, and those that only we hold.

    `theirs` are all blocks that they hold in these buckets.
    """
    there, here = set(theirs), set(ours)
    wanted = set(buckets)
    come = [at for at, each in enumerate(theirs) if each not in here]
    gone = [each for each in ours if each not in there and each >> _BUCKET_SHIFT in wanted]
    return (
        array("Q", [theirs[at] for at in come]),
        array("Q", [sizes[at] for at in come]),
        array("Q", gone),
    )


def owner_of(endpoint: EndpointId, replicas: Collection[int]) -> int:
    """Return the replica that owns an endpoint; the same at all replicas that know the same ones.

    Rendezvous hashing: a replica that comes or goes moves only its own endpoints.
    """
    return max(replicas, key=lambda each: (_weight(endpoint, each), each))


def _weight(endpoint: EndpointId, replica: int) -> bytes:
    name = endpoint.encode(errors="surrogateescape")
    return blake2b(name, key=replica.to_bytes(8, "big"), digest_size=8).digest()
